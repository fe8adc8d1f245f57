"""What `retouch learn` prints before it starts: classes, settings and cost."""

from typing import TYPE_CHECKING, Any

from retouch.cli.terminal.console import print_line
from retouch.text.plural import count

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console

    from retouch.data import Stream
    from retouch.evaluate import Results
    from retouch.train import Plan
    from retouch.train.estimate import Cost

MAX_CLASSES = 12
"""How many of the new classes are listed."""
MAX_TENSORS = 80


def show_classes(console: "Console", stream: "Stream", done: int = 0) -> None:
    """The new classes, as the prompts that they make."""
    from retouch.data.class_names import uninformative_names

    new, old = stream.tasks[done:], stream.tasks[:done]
    classes = [name for task in new for name in stream.names(task.classes)]
    known = {label for task in old for label in task.classes}
    train, test = sum(len(task.train) for task in new), sum(len(task.test) for task in new)
    before = f" (it learned {count(len(known), 'class')} before)" if known else ""
    print_line(
        console,
        f"{count(len(classes), 'class')} to learn{before}, from {count(train, 'image')}; {test:,} "
        "more to test with. The prompts:",
    )
    labels = [label for task in new for label in task.classes]
    for group in _by_domain(stream, labels):
        shown = group[: max(2, MAX_CLASSES // max(1, len(stream.train.domains)))]
        for prompt in stream.train.class_prompts(shown):
            print_line(console, f"  {prompt}")
        if len(group) > len(shown):
            print_line(console, f"  … and {len(group) - len(shown)} more")
    if stream.train.domains:
        print_line(console, _choices_sentence(stream))
    if codes := uninformative_names(classes):
        print_line(
            console, f"{codes[0]!r} means nothing to a model that reads: name it with --names."
        )


def _by_domain(stream: "Stream", labels: "Sequence[int]") -> "list[list[int]]":
    """The labels of each data set."""
    names = stream.train.classes
    groups = [
        [label for label in labels if names[label] in d.classes] for d in stream.train.domains
    ]
    return groups or [list(labels)]


def _choices_sentence(stream: "Stream") -> str:
    among = {
        "domain": "the classes of its own data set",
        "all": f"all {len(stream.classes):,} classes",
        "seen": "the classes learned so far",
    }[stream.choices]
    names = ", ".join(domain.name for domain in stream.train.domains)
    return f"In this order: {names}. A test image is classified among {among}."


def show_hardware(console: "Console", plan: "Plan", decodes_once: bool) -> None:
    """Where and how the run is computed."""
    from retouch.data.loading.decode import workers

    often = "once" if decodes_once else "every time"
    decoding = f"images are decoded {often}, {workers()} at a time"
    print_line(console, f"{plan.hardware}; {decoding}.")


def control_note(plan: "Plan") -> list[str]:
    """How much of a large control set is checked after each task, for the user."""
    part, control = plan.control_part, plan.control
    if part is None or control is None or len(plan.stream.tasks) - plan.done < 2:
        return []
    images = f"{len(part):,} of the {len(control):,} control images"
    return [f"{images} are checked after each task, all of them at the end"]


def images_note(plan: "Plan") -> list[str]:
    """That no image is stored, for the user."""
    return [] if plan.method.store_images else ["no image is stored in the folder of the run"]


def show_settings(console: "Console", notes: "Sequence[str]") -> None:
    for note in notes:
        print_line(console, f"{note[0].upper()}{note[1:]}.")


def show_micro_batch(console: "Console", cost: "Cost") -> None:
    """Why fewer images or prompts than a step has are computed at a time."""
    from retouch.plotting.formatting import file_size

    print_line(
        console,
        f"{file_size(cost.free or 0)} of GPU memory are free, so images and prompts are "
        f"computed {cost.micro_batch} at a time; the gradients are the same.",
    )


def show_cost(console: "Console", cost: "Cost", plan: "Plan") -> None:
    """Which weights may change, and what training will take."""
    from retouch.plotting.formatting import duration, file_size

    nothing = (
        "No weight changes: new classes get vectors, which are kept beside the model."
        if plan.method.adds_class_vectors
        else "Nothing may change."
    )
    print_line(console, "What may change:" if cost.selection else nothing)
    if cost.selection:
        lines = str(cost.selection).splitlines()
        if len(lines) > MAX_TENSORS:  # full fine-tuning has hundreds
            lines[4:-2] = [f"… and {len(lines) - 6} more tensors"]
        print_line(console, "\n".join(lines))
    memory = "GPU memory" if plan.clip.device.type == "cuda" else "memory"
    print_line(
        console,
        f"It will take about {duration(cost.seconds)}, {file_size(cost.memory)} of {memory} and "
        f"{file_size(cost.disk)} of disk.",
    )


def plan_facts(plan: "Plan", cost: "Cost") -> dict[str, Any]:
    """What would be learned and what that takes, as a JSON object."""
    stream, new = plan.stream, plan.stream.tasks[plan.done :]
    return {
        "state": "new",
        "learned": plan.done,
        "tasks": len(stream.tasks),
        "model": plan.clip.name,
        "method": plan.method.name,
        "settings": plan.settings.model_dump(mode="json"),
        "classes": [name for task in new for name in stream.names(task.classes)],
        "images": sum(len(task.train) for task in new),
        "test_images": sum(len(task.test) for task in new),
        "control_images": len(plan.control) if plan.control else 0,
        "weights": cost.selection.count,
        "seconds": cost.seconds,
        "memory": cost.memory,
        "disk": cost.disk,
    }


def resumed_facts(results: "Results") -> dict[str, Any]:
    """What is there already of a run that would be resumed, as a JSON object."""
    state = "finished" if results.finished else "unfinished"
    return {"state": state, "learned": results.done, "tasks": len(results.tasks)}


def resumed_sentence(folder: "Path", results: "Results") -> str:
    """What would become of a run that would be resumed."""
    if results.finished:
        return f"{folder} is finished; nothing would be trained."
    return f"{folder} would be resumed at task {results.done + 1} of {len(results.tasks)}."
