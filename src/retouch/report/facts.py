"""What the page states besides the plots: headings, the answers in short, settings, notes."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from retouch import plural
from retouch.evaluate.per_class import PerClass
from retouch.evaluate.results import DataInfo, Results
from retouch.report.class_changes import summary
from retouch.report.intervals import SMALL, caution, spread_of, wilson
from retouch.report.phrasing import (
    classes,
    control_sentence,
    drift_sentence,
    duration,
    joint_sentence,
    learned_earlier_sentence,
    learned_sentence,
    numbers,
    percent,
    share,
    starting_sentence,
    total_sentence,
    update_summary,
)
from retouch.report.run_names import Named, labels
from retouch.report.steps import continues, this_step


class Bar(NamedTuple):
    """An accuracy drawn as a bar."""

    name: str
    kind: str
    """Its class in the style sheet: then, now or weak."""
    value: float
    was: float | None = None
    """Where to mark what it was before."""
    images: int = 0
    """How many images it was measured on; 0 where that is not known."""

    @property
    def text(self) -> str:
        return percent(self.value)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval, where there are so few images that it matters."""
        return wilson(self.value, self.images) if 0 < self.images < SMALL else None


class Answer(NamedTuple):
    """A question of the first screen: what to say, and a picture."""

    heading: str
    sentence: str
    bars: list[Bar]
    asides: list[str]


def title(runs: Sequence[Results], named: bool = False) -> str:
    """The heading; a run that is `named` above it need not be called by its method."""
    if len(runs) == 1:
        return f"What {'it' if named else runs[0].method} learned, and what it forgot"
    return f"What {len(runs)} runs learned, and what they forgot"


def about(runs: Sequence[Results]) -> str:
    """The line below the title: what all the runs share."""
    said = [runs[0].summary] if len(runs) == 1 else []
    if len({run.model for run in runs}) == 1:
        said.append(runs[0].model)
    if all(run.tasks == runs[0].tasks for run in runs):
        tasks = len(runs[0].tasks)
        said.append(
            f"{plural.count(classes(runs[0]), 'new class')} in {plural.count(tasks, 'task')}"
        )
    return " · ".join(said)


def made_of(run: Results) -> str:
    """What it learned from, what judged it, when that was and how long it took."""
    said = []
    for use, what in (("train", "Data"), ("control", "Control set")):
        if use in run.data:
            said.append(f"{what}: {run.data[use].name}")
    if run.started:
        said.append(_date(run.started))
    if run.done > run.learned_before:
        said.append(f"learned in {duration(sum(run.seconds[run.learned_before :]))}")
    return " · ".join(said)


def _date(started: str) -> str:
    """For people: "16 November 2026, 18:40 UTC"."""
    try:
        when = datetime.fromisoformat(started)
    except ValueError:
        return started
    return f"{when.day} {when:%B %Y, %H:%M} UTC"


def answers(run: Results, by_class: PerClass | None = None) -> list[Answer]:
    """What one run learned, what it did to the control set, and how it does on both at once."""
    everything = summary(by_class, learned=True)
    if everything and continues(run):
        everything = f"Since before the first task: {everything[0].lower()}{everything[1:]}"
    new, old = _new_bars(run), _control_bars(run)
    sentence = " ".join(filter(None, [learned_sentence(run), learned_earlier_sentence(run)]))
    asides = [_caution(new, "test"), total_sentence(run), everything]
    control = [_caution(old, "control"), summary(by_class, learned=False), drift_sentence(run)]
    found = [
        Answer("What it learned", sentence, new, list(filter(None, asides))),
        Answer("What it could do before", control_sentence(run), old, list(filter(None, control))),
    ]
    if together := joint_sentence(run):
        found.append(Answer("New and control classes at once", together, _joint_bars(run), []))
    return found


def _caution(bars: Sequence[Bar], what: str) -> str:
    """How sure the last of these numbers is."""
    return caution(bars[-1].value, bars[-1].images, what) if bars else ""


def _new_bars(run: Results) -> list[Bar]:
    """Before and now; of a run that goes on from another, in this step."""
    if continues(run):
        step, own = this_step(run), run.tasks[run.learned_before : run.done]
        start, now = step.before, step.now
        images = sum(task.test for task in own)
    else:
        start, now = starting_sentence(run), numbers(run).get("accuracy")
        images = sum(task.test for task in run.tasks[: run.done])
    found = []
    if start is not None and (run.finished or now is None):
        found.append(Bar("before", "then", start))
    if now is not None:
        found.append(Bar("now", "now", now, start if run.finished else None, images))
    return found


def _control_bars(run: Results) -> list[Bar]:
    start = run.rows[0].control if run.rows else None
    if continues(run):
        start = this_step(run).control_before
    info, found, now = run.data.get("control"), [], numbers(run)
    if start is not None:
        found.append(Bar("before", "then", start))
    if "control" in now:
        found.append(Bar("now", "now", now["control"], start, info.images if info else 0))
    if not found and "drift_neighbours" in now:
        found.append(Bar("words", "weak", now["drift_neighbours"]))
    return found


def _joint_bars(run: Results) -> list[Bar]:
    now, start = run.rows[-1].joint, run.rows[0].joint
    assert now is not None
    then = start if run.finished and run.done else None
    return [
        Bar(name, "now", getattr(now, part), getattr(then, part) if then else None)
        for name, part in (("new", "new"), ("control", "control"), ("both", "overall"))
    ]


def judged_now(run: Results) -> list[str]:
    """Of each task that is learned: how many are right now, of how many, and how sure that is."""
    found = []
    for number, task in enumerate(run.tasks):
        value = run.rows[-1].tasks[number] if number < run.done and run.begun else None
        if value is None or not task.test:
            found.append("")
            continue
        sure = spread_of(value, task.test)
        sure = f" (95 % interval {sure})" if sure else ""
        found.append(f"{percent(value)}{sure} of {task.test:,} test image{'s'[: task.test - 1]}")
    return found


def notes(runs: Sequence[Results]) -> dict[str, list[str]]:
    """Each warning once, with the runs that gave it."""
    found: dict[str, list[str]] = {}
    for name, run in zip(labels(runs), runs, strict=True):
        for note in run.notes:
            found.setdefault(note, []).append(name)
    return found


def shared(runs: Sequence[Results]) -> dict[str, str]:
    """The facts that are the same for all runs."""
    every = [_facts(run) for run in runs]
    alike = {k: v for k, v in every[0].items() if all(other.get(k) == v for other in every)}
    if len(runs) == 1:  # its command stands above the table
        alike.pop("command", None)
    return alike


def own(run: Results, runs: Sequence[Results]) -> dict[str, str]:
    """The facts of a run that others do not share, and that its heading does not say."""
    said = set(shared(runs)) | (set() if isinstance(run, Named) else {"method"})
    return {k: v for k, v in _facts(run).items() if k not in said}


def _facts(run: Results) -> dict[str, str]:
    kept_images = sum(len(group) for group in run.replay.get("groups", {}).values())
    found = {
        "method": f"{run.method}: {run.summary}",
        "model": run.model,
        **_sources(run),
        "weights in the model": f"{run.parameters:,}",
        "tasks learned": f"{run.done} of {len(run.tasks)}",
        "images to learn from": f"{sum(task.train for task in run.tasks):,}",
        "images to judge by": f"{sum(task.test for task in run.tasks):,}",
        "images kept to replay": f"{kept_images:,}" if kept_images else "none",
    }
    if run.done:
        most = max(run.trained, default=0)
        moved = f"{most:,} ({share(most, run.parameters)})" if update_summary(run) else "none"
        found["weights free in a task, at most"] = moved
        found["time for each task"] = ", ".join(duration(seconds) for seconds in run.seconds)
    if min(run.fraction_kept, default=1.0) < 1:
        found["kept of each task's change"] = ", ".join(
            percent(100 * part) for part in run.fraction_kept
        )
    if "drift_neighbours" in (now := numbers(run)):
        found["everyday words nearest to the same word"] = percent(now["drift_neighbours"])
    names = {key: key.replace("_", " ") for key in run.settings} | {"lr": "learning rate"}
    settings = {names[key]: str(v) for key, v in run.settings.items() if v is not None}
    return found | settings | run.environment


def _sources(run: Results) -> dict[str, str]:
    """Where the images came from, the command and the date, as far as they are known."""
    names = {"train": "learned from", "test": "judged by", "control": "control set"}
    found = {what: _described(run.data[use]) for use, what in names.items() if use in run.data}
    if run.learned_before:
        found["tasks learned by an earlier run"] = str(run.learned_before)
    if run.started:
        found["begun"] = _date(run.started)
    return found | ({"command": run.command} if run.command else {})


def _described(data: DataInfo) -> str:
    images, of = plural.count(data.images, "image"), plural.count(data.classes, "class")
    return f"{data.name}: {images} of {of}"
