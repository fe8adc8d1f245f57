"""What a run is about to do, shown before it begins."""

from typing import TYPE_CHECKING

from retouch.plural import count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from retouch.clip import Clip
    from retouch.data import Stream
    from retouch.train.cost import Cost

_SHOWN = 12
"""So many of the new classes are listed."""
_TENSORS = 80


def show_classes(talk: "Console", stream: "Stream", done: int = 0) -> None:
    """The new classes, with the prompts they make."""
    from retouch.clip.zero_shot import fill_template
    from retouch.data.rename import uninformative_names

    new, old = stream.tasks[done:], stream.tasks[:done]
    classes = [name for task in new for name in stream.names(task.classes)]
    known = {label for task in old for label in task.classes}
    learn, judge = (sum(len(task.train) for task in new), sum(len(task.test) for task in new))
    before = f" (it learned {count(len(known), 'class')} before)" if known else ""
    _say(
        talk,
        f"{count(len(classes), 'class')} to learn{before}, from {count(learn, 'image')}; {judge:,} "
        "more to judge by. They are called:",
    )
    for text in fill_template(stream.train.prompt, classes[:_SHOWN]):
        _say(talk, f"  {text}")
    if len(classes) > _SHOWN:
        _say(talk, f"  … and {len(classes) - _SHOWN} more")
    if codes := uninformative_names(classes):
        _say(talk, f"{codes[0]!r} says nothing to a model that reads: give it a name with --names.")


def show_settings(talk: "Console", said: "Sequence[str]") -> None:
    for line in said:
        _say(talk, f"{line[0].upper()}{line[1:]}.")


def show_cost(talk: "Console", cost: "Cost", clip: "Clip") -> None:
    """What may move, and what that will take."""
    from retouch.report.phrasing import duration, file_size

    _say(talk, "What may move:" if cost.selection else "Nothing may move.")
    if cost.selection:
        lines = str(cost.selection).splitlines()
        if len(lines) > _TENSORS:  # full fine-tuning has hundreds
            lines[4:-2] = [f"… and {len(lines) - 6} more tensors"]
        _say(talk, "\n".join(lines))
    memory = "GPU memory" if clip.device.type == "cuda" else "memory"
    _say(
        talk,
        f"It will take about {duration(cost.seconds)}, {file_size(cost.memory)} of {memory} and "
        f"{file_size(cost.disk)} of disk.",
    )


def _say(talk: "Console", text: str) -> None:
    talk.print(text, highlight=False, markup=False, soft_wrap=True)
