"""How much a run computes: it follows from data and settings alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from retouch.data.images import Images
from retouch.data.stores.image_store import Indices
from retouch.data.stream import Stream, Task
from retouch.methods import Method, Settings


@dataclass(frozen=True)
class Work:
    """How much passes through the towers in a run; it follows from data and settings alone."""

    trained: int
    """Images of all training steps, replayed ones included."""
    trained_prompts: int
    """Distinct prompts of all training steps, with those that a loss adds."""
    evaluated: int
    """Images of all evaluations, and those that class vectors are computed from."""
    evaluated_prompts: int
    """Prompts of all evaluations."""
    images: int = 0
    """Distinct images of all training steps and of an evaluation."""
    step_prompts: int = 0
    """The most prompts of a training step."""
    extra_prompts: int = 0
    """Prompts that the method's `after_task` trains on, before and after the steps of tasks."""


def work(
    stream: Stream,
    method: Method,
    settings: Settings,
    *,
    done: int = 0,
    control: Images | None,
    part: Indices | None = None,
    fewer_images: Sequence[int] = (),
) -> Work:
    """Count images and prompts.

    The model is evaluated before the first task and after each, between them perhaps on a `part` of
    the control set. A run that continues another evaluates the model that it begins with as well,
    and earlier ones on the tasks of which fewer images are left (`EarlierRun.fewer_images`).
    """
    tasks = stream.tasks[done:]
    prompts_of = _StepPrompts(stream, method, settings)
    steps = [_steps(task, prompts_of, method, settings) for task in tasks]
    groups = stream.test.prompt_groups
    prompts = sum(len(group.classes) * len(group.templates) for group in groups)
    prompts += len(control.classes) * len(control.templates) if control is not None else 0
    whole = len(stream.test) + len(control or ())
    between, ends = len(tasks) - 1, 2 + bool(done)
    again = [
        sum(len(stream.tasks[number].test) for number in fewer_images if number < learned)
        for learned in range(1, done)
    ]
    return Work(
        trained=sum(images for images, _ in steps),
        trained_prompts=sum(prompts for _, prompts in steps),
        evaluated=(sum(len(task.train) for task in tasks) if method.adds_class_vectors else 0)
        + whole * ends
        + (whole if part is None else len(stream.test) + len(part)) * between
        + sum(again),
        evaluated_prompts=prompts * (ends + between + sum(map(bool, again))),
        images=sum(len(task.train) for task in tasks) + whole,
        step_prompts=max((prompts_of(task, task.number > 0) for task in tasks), default=0),
        extra_prompts=sum(_extra_prompts(stream, method, task) for task in tasks),
    )


def _extra_prompts(stream: Stream, method: Method, task: Task) -> int:
    known = {label for each in stream.tasks[: task.number + 1] for label in each.classes}
    return method.after_task.extra_prompts(len(known))


def _steps(
    task: Task, prompts_of: "_StepPrompts", method: Method, settings: Settings
) -> tuple[int, int]:
    """Images and prompts of all steps of a task; from the second on, as many are replayed."""
    per_epoch = -(-len(task.train) // settings.batch)
    epochs: float = settings.epochs if settings.steps is None else settings.steps / per_epoch
    active = sum(map(method.replay.is_active, range(ceil(epochs)))) if task.number else 0
    replayed = min(active, epochs)
    prompts = prompts_of(task, False) * (epochs - replayed) + prompts_of(task, True) * replayed
    return round(len(task.train) * (epochs + replayed)), round(per_epoch * prompts)


class _StepPrompts:
    """How many distinct prompts a training step has, at most.

    Those of all known classes where the regularizer adds them, or of all classes of the task where
    the loss does; and those of the images, of which each may have a caption of its own.
    """

    def __init__(self, stream: Stream, method: Method, settings: Settings) -> None:
        self._stream, self._method, self._batch = stream, method, settings.batch
        self._buffer = method.replay.buffer(stream, settings.seed).size
        self._texts = [self._texts_of(task) for task in stream.tasks]

    def __call__(self, task: Task, replay: bool) -> int:
        """For a step of a task, with replayed images or without."""
        first = self._first_classes(task)
        first_texts = set(self._stream.train.class_prompts(first))
        new = self._texts[task.number] - first_texts
        old = set[str]().union(*self._texts[: task.number]) - first_texts - new
        replayed = min(self._batch, self._buffer, len(old)) if replay else 0
        return len(first) + min(self._batch, len(new)) + replayed

    def _first_classes(self, task: Task) -> set[int]:
        """The classes whose prompts every batch has."""
        own = set(task.classes)
        earlier = {label for t in self._stream.tasks[: task.number] for label in t.classes}
        if self._method.regularizer.adds_known_prompts(len(earlier - own)):
            return own | earlier
        return own if self._method.loss == "cross-entropy" else set()

    def _texts_of(self, task: Task) -> set[str]:
        """The distinct texts of a task's images."""
        train = self._stream.train
        if train.captions is None:
            return set(train.class_prompts(task.classes))
        return set(train.texts(task.train)[0])
