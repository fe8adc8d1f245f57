"""What the page states besides the plots: headings, the answers in short, settings, notes."""

from collections.abc import Sequence
from typing import NamedTuple

from retouch.learn.results import Results
from retouch.report.words import classes, duration, kept, labels, learned, percent, share, trains


class Bar(NamedTuple):
    """An accuracy drawn as a bar."""

    name: str
    kind: str
    """Its class in the style sheet: then or now."""
    value: float

    @property
    def text(self) -> str:
        return percent(self.value)


class Answer(NamedTuple):
    """One of the two questions of the first screen: a sentence and a picture."""

    heading: str
    sentence: str
    bars: list[Bar]


def title(runs: Sequence[Results]) -> str:
    if len(runs) == 1:
        return f"What {runs[0].method} learned, and what it forgot"
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


def answers(run: Results) -> list[Answer]:
    """What one run learned and what it kept."""
    new, old = [], []
    if run.rows and (run.finished or not run.done):
        new.append(Bar("before", "then", run.frozen_accuracy))
    if run.done:
        new.append(Bar("now", "now", run.metrics()["accuracy"]))
    if run.rows and run.rows[0].control is not None:
        old.append(Bar("before", "then", run.rows[0].control))
    if "control" in (found := run.metrics()):
        old.append(Bar("now", "now", found["control"]))
    return [
        Answer("What it learned", learned(run), new),
        Answer("What it kept", kept(run), old),
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
    """The facts of a run that others do not share, besides its method, which is its heading."""
    common = shared(runs)
    return {k: v for k, v in _facts(run).items() if k not in common and k != "method"}


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
    names = {key: key.replace("_", " ") for key in run.settings} | {"lr": "learning rate"}
    settings = {names[key]: str(v) for key, v in run.settings.items() if v is not None}
    return found | settings | run.environment
