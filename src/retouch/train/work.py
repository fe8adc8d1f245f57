"""How much a run computes: it follows from data and settings alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from retouch.data.images import Images
from retouch.data.stream import Stream, Task
from retouch.methods import Method, Settings
from retouch.train.control_part import control_part


@dataclass(frozen=True)
class Work:
    """How much passes through the towers in a run; it follows from data and settings alone."""

    trained: int
    """Images of all training steps, replayed ones included."""
    trained_prompts: int
    """Distinct prompts of all training steps."""
    evaluated: int
    """Images of all evaluations."""
    evaluated_prompts: int
    """Prompts of all evaluations."""
    images: int = 0
    """Distinct images of all training steps and of an evaluation."""


def work(
    stream: Stream,
    method: Method,
    settings: Settings,
    *,
    done: int = 0,
    control: Images | None,
    fewer_images: Sequence[int] = (),
) -> Work:
    """Count images and prompts.

    The model is evaluated before the first task and after each, between them perhaps on a part of
    the control set. A run that continues another evaluates the model that it begins with as well,
    and earlier ones on the tasks of which fewer images are left (`EarlierRun.fewer_images`).
    """
    tasks = stream.tasks[done:]
    steps = [_steps(stream, task, method, settings) for task in tasks]
    groups = stream.test.prompt_groups
    prompts = sum(len(group.classes) * len(group.templates) for group in groups)
    prompts += len(control.classes) * len(control.templates) if control is not None else 0
    whole = len(stream.test) + len(control or ())
    part = control_part(stream, control, method, settings)
    between, ends = len(tasks) - 1, 2 + bool(done)
    again = [
        sum(len(stream.tasks[number].test) for number in fewer_images if number < learned)
        for learned in range(1, done)
    ]
    return Work(
        trained=sum(images for images, _ in steps),
        trained_prompts=sum(prompts for _, prompts in steps),
        evaluated=whole * ends
        + (whole if part is None else len(stream.test) + len(part)) * between
        + sum(again),
        evaluated_prompts=prompts * (ends + between + sum(map(bool, again))),
        images=sum(len(task.train) for task in tasks) + whole,
    )


def _steps(stream: Stream, task: Task, method: Method, settings: Settings) -> tuple[int, int]:
    """Images and prompts of all steps of a task; from the second on, as many images are replayed.

    Where every image has a caption there may be more prompts than classes.
    """
    per_epoch = -(-len(task.train) // settings.batch)
    epochs: float = settings.epochs if settings.steps is None else settings.steps / per_epoch
    replayed = sum(map(method.replay.is_active, range(ceil(epochs)))) if task.number else 0
    earlier = len({label for other in stream.tasks[: task.number] for label in other.classes})
    new, old = (min(settings.batch, classes) for classes in (len(task.classes), earlier))
    images = len(task.train) * (epochs + min(replayed, epochs))
    return round(images), round(per_epoch * (new * epochs + old * min(replayed, epochs)))
