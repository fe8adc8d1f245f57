"""What the page states apart from the plots: headings, settings and notes."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from retouch.evaluate.results import Results
from retouch.evaluate.task_info import DataInfo
from retouch.plotting.formatting import duration, percent, share
from retouch.report.intervals import interval_text
from retouch.report.run_metrics import any_weight_trained, class_count, control_part, metrics
from retouch.report.run_names import NamedResults, run_labels
from retouch.text import plural


def title(runs: Sequence[Results], named: bool = False) -> str:
    """The heading; a run that is `named` above it need not be called by its method."""
    if len(runs) == 1:
        return f"What {'it' if named else runs[0].method} learned, and what it forgot"
    return f"What {len(runs)} runs learned, and what they forgot"


def subtitle(runs: Sequence[Results]) -> str:
    """The line below the title: what all the runs share."""
    parts = [runs[0].summary] if len(runs) == 1 else []
    if len({run.model for run in runs}) == 1:
        parts.append(runs[0].model)
    if all(run.tasks == runs[0].tasks for run in runs):
        classes = plural.count(class_count(runs[0]), "new class")
        parts.append(f"{classes} in {plural.count(len(runs[0].tasks), 'task')}")
    return " · ".join(parts)


def provenance(run: Results) -> str:
    """The data, the control set, when the run started and how long it took."""
    parts = []
    for use, label in (("train", "Data"), ("control", "Control set")):
        if use in run.data:
            parts.append(f"{label}: {run.data[use].name}")
    if run.started:
        parts.append(_date(run.started))
    if run.done > run.learned_before:
        parts.append(f"learned in {duration(sum(run.seconds[run.learned_before :]))}")
    return " · ".join(parts)


def _date(started: str) -> str:
    """Such as "16 November 2026, 18:40 UTC"."""
    try:
        when = datetime.fromisoformat(started)
    except ValueError:
        return started
    return f"{when.day} {when:%B %Y, %H:%M} UTC"


def accuracy_notes(run: Results) -> list[str]:
    """For each task: its accuracy now with a confidence interval; "" if it was not measured."""
    notes = []
    for number, task in enumerate(run.tasks):
        value = run.rows[-1].tasks[number] if number < run.done and run.begun else None
        if value is None or not task.test:
            notes.append("")
            continue
        interval = interval_text(value, task.test)
        interval = f" (95 % interval {interval})" if interval else ""
        notes.append(f"{percent(value)}{interval} of {plural.count(task.test, 'test image')}")
    return notes


def warnings(runs: Sequence[Results]) -> dict[str, list[str]]:
    """Each warning once, with the runs that gave it."""
    by_text: dict[str, list[str]] = {}
    for name, run in zip(run_labels(runs), runs, strict=True):
        for text in run.notes:
            by_text.setdefault(text, []).append(name)
    return by_text


def shared_settings(runs: Sequence[Results]) -> dict[str, str]:
    """The settings and facts that are the same for all runs."""
    first, *others = [_settings(run) for run in runs]
    shared = {k: v for k, v in first.items() if all(other.get(k) == v for other in others)}
    if len(runs) == 1:  # its command is shown above the table
        shared.pop("command", None)
    return shared


def differing_settings(run: Results, runs: Sequence[Results]) -> dict[str, str]:
    """The settings of a run that others do not share, and that its heading does not say."""
    known = set(shared_settings(runs)) | (set() if isinstance(run, NamedResults) else {"method"})
    return {k: v for k, v in _settings(run).items() if k not in known}


def _settings(run: Results) -> dict[str, str]:
    replay_images = sum(len(group) for group in run.replay.groups.values())
    facts = {
        "method": f"{run.method}: {run.summary}",
        "model": run.model,
        **_sources(run),
        "weights in the model": f"{run.parameters:,}",
        "tasks learned": f"{run.done} of {len(run.tasks)}",
        "training images": f"{sum(task.train for task in run.tasks):,}",
        "test images": f"{sum(task.test for task in run.tasks):,}",
        "images kept for replay": f"{replay_images:,}" if replay_images else "none",
    }
    if (part := control_part(run)) is not None:
        facts["control images checked after each task"] = f"{part:,}"
    if run.done:
        most = max(run.trained, default=0)
        trained = f"{most:,} ({share(most, run.parameters)})" if any_weight_trained(run) else "none"
        facts["weights free to move in a task, at most"] = trained
        if run.class_vectors:
            facts["classes with a vector beside the model"] = f"{run.class_vectors:,}"
        if any_weight_trained(run) and (0 in run.steps or len({*run.steps}) > 1):
            why = "; none: teaching the text tower alone was enough" if 0 in run.steps else ""
            steps = ", ".join(f"{steps:,}" if steps else "none" for steps in run.steps)
            facts["steps in each task"] = steps + why
        facts["time for each task"] = ", ".join(duration(seconds) for seconds in run.seconds)
    if min(run.fraction_kept, default=1.0) < 1:
        facts["kept of each task's change"] = ", ".join(
            percent(100 * fraction) for fraction in run.fraction_kept
        )
    if "drift_neighbours" in (values := metrics(run)):
        facts["everyday words nearest to the same word"] = percent(values["drift_neighbours"])
    labels = {key: key.replace("_", " ") for key in run.settings} | {"lr": "learning rate"}
    settings = {
        labels[key]: text
        for key, value in run.settings.items()
        if key != "control_part" and (text := _value(value))  # it is among the facts above
    }
    return facts | settings | run.environment


def _value(value: Any) -> str:
    """A setting as text; empty where nothing is set."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{_value(each)} for {key}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_value, value))
    return str(value)


def _sources(run: Results) -> dict[str, str]:
    """Where the images came from, the date and the command, if they are known."""
    labels = {"train": "trained on", "test": "tested on", "control": "control set"}
    facts = {label: _describe(run.data[use]) for use, label in labels.items() if use in run.data}
    if run.learned_before:
        facts["tasks learned by an earlier run"] = str(run.learned_before)
    if run.started:
        facts["started"] = _date(run.started)
    return facts | ({"command": run.command} if run.command else {})


def _describe(data: DataInfo) -> str:
    images, classes = plural.count(data.images, "image"), plural.count(data.classes, "class")
    return f"{data.name}: {images} of {classes}"
