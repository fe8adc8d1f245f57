"""What the page states besides the plots: headings, the answers in short, settings, notes."""

from collections.abc import Sequence
from typing import NamedTuple

from retouch.learn.by_class import ByClass
from retouch.learn.results import Results
from retouch.report.changes import summary
from retouch.report.naming import Named, labels
from retouch.report.words import (
    before,
    classes,
    drifted,
    duration,
    kept,
    learned,
    numbers,
    percent,
    share,
    trains,
)


class Bar(NamedTuple):
    """An accuracy drawn as a bar."""

    name: str
    kind: str
    """Its class in the style sheet: then, now or weak."""
    value: float
    was: float | None = None
    """Where to mark what it was before."""

    @property
    def text(self) -> str:
        return percent(self.value)


class Answer(NamedTuple):
    """One of the two questions of the first screen: a sentence and a picture."""

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
        said.append(f"{classes(runs[0])} new classes in {tasks} task{'s' if tasks > 1 else ''}")
    return " · ".join(said)


def answers(run: Results, by_class: ByClass | None = None) -> list[Answer]:
    """What one run learned and what it kept."""
    found, start = numbers(run), before(run)
    new, old = [], []
    if start is not None and (run.finished or not run.done):
        new.append(Bar("before", "then", start))
    if "accuracy" in found:
        new.append(Bar("now", "now", found["accuracy"], start if run.finished else None))
    could = run.rows[0].control if run.rows else None
    if could is not None:
        old.append(Bar("before", "then", could))
    if "control" in found:
        old.append(Bar("now", "now", found["control"], could))
    if not old and "drift_neighbours" in found:
        old.append(Bar("words", "weak", found["drift_neighbours"]))
    asides = [summary(by_class, learned=True)], [summary(by_class, learned=False), drifted(run)]
    return [
        Answer("What it learned", learned(run), new, list(filter(None, asides[0]))),
        Answer("What it kept", kept(run), old, list(filter(None, asides[1]))),
    ]


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
    return {k: v for k, v in every[0].items() if all(other.get(k) == v for other in every)}


def own(run: Results, runs: Sequence[Results]) -> dict[str, str]:
    """The facts of a run that others do not share, and that its heading does not say."""
    said = set(shared(runs)) | (set() if isinstance(run, Named) else {"method"})
    return {k: v for k, v in _facts(run).items() if k not in said}


def _facts(run: Results) -> dict[str, str]:
    kept_images = sum(len(group) for group in run.replay.get("groups", {}).values())
    found = {
        "method": f"{run.method}: {run.summary}",
        "model": run.model,
        "weights in the model": f"{run.parameters:,}",
        "tasks learned": f"{run.done} of {len(run.tasks)}",
        "images to learn from": f"{sum(task.train for task in run.tasks):,}",
        "images to judge by": f"{sum(task.test for task in run.tasks):,}",
        "images kept to replay": f"{kept_images:,}" if kept_images else "none",
    }
    if run.done:
        most = max(run.trained, default=0)
        moved = f"{most:,} ({share(most, run.parameters)})" if trains(run) else "none"
        found["weights free in a task, at most"] = moved
        found["time for each task"] = ", ".join(duration(seconds) for seconds in run.seconds)
    if min(run.kept, default=1.0) < 1:
        found["kept of each task's change"] = ", ".join(percent(100 * part) for part in run.kept)
    if "drift_neighbours" in (now := numbers(run)):
        found["everyday words nearest to the same word"] = percent(now["drift_neighbours"])
    names = {key: key.replace("_", " ") for key in run.settings} | {"lr": "learning rate"}
    settings = {names[key]: str(v) for key, v in run.settings.items() if v is not None}
    return found | settings | run.environment
