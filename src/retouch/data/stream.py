"""A stream of tasks: disjoint sets of classes that are learned one after the other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, Literal

import numpy as np

from retouch.arguments import check_arguments, wrong_argument
from retouch.data.domain import Domain
from retouch.data.images import DEFAULT_TEMPLATE, Images, refuse_confusable_classes, refuse_empty
from retouch.data.loading.progress import Progress, no_progress
from retouch.data.stores.composite import ConcatStore
from retouch.data.stores.image_store import Indices
from retouch.data.stores.string_array import StringArray
from retouch.errors import UserError
from retouch.text.plural import count


def join_images(sets: Mapping[str, Images]) -> Images:
    """The images of all sets, one set after the other, and so are their labels.

    A class whose name is in several sets is called after its set too: "lotus (flowers102)". In
    prompts it keeps its name.

    Args:
        sets: The images by the name of their data set. None may be joined already.
    """
    twins = shared_classes(sets)
    domains = tuple(_domain(name, images, twins) for name, images in sets.items())
    classes = [name for domain in domains for name in domain.classes]
    if len(set(classes)) < len(classes):
        raise UserError(
            f"two classes of {', '.join(sets)} would have the same name; rename one of them"
        )
    starts = np.cumsum([0, *(len(images.classes) for images in sets.values())])[:-1]
    parts = list(sets.values())
    labels = [images.labels + start for images, start in zip(parts, starts, strict=True)]
    captioned = any(images.captions is not None for images in parts)
    prompt, templates = _shared_prompts(parts)
    return Images(
        name=", ".join(dict.fromkeys(images.name for images in parts)),
        classes=classes,
        labels=np.concatenate(labels),
        store=reduce(ConcatStore, [images.store for images in parts]),
        prompt=prompt,
        templates=templates,
        captions=_captions(parts) if captioned else None,
        notes=list(dict.fromkeys(note for images in parts for note in images.notes)),
        domains=domains,
    )


def shared_classes(sets: Mapping[str, Images]) -> dict[str, list[str]]:
    """The class names that several sets have, each with the names of these sets."""
    owners: dict[str, list[str]] = {}
    for name, images in sets.items():
        for class_name in images.classes:
            owners.setdefault(class_name, []).append(name)
    return {class_name: names for class_name, names in owners.items() if len(names) > 1}


def twins_note(sets: Mapping[str, Images], choices: str, twins: str) -> str:
    """What becomes of classes that two data sets have; "" if there are none."""
    shared = shared_classes(sets)
    if not shared:
        return ""
    (first, owners), *_ = shared.items()
    more = f" (and {len(shared) - 1} more)" if len(shared) > 1 else ""
    if choices == "domain":
        handled = "an image is classified among the classes of its own data set"
    elif twins == "merge":
        handled = "they count as one class in evaluation"
    else:
        handled = "they count as different classes, told apart by their prompts alone"
    return f"{first!r}{more} is a class of {' and of '.join(owners)}: {handled}"


def _domain(name: str, images: Images, twins: Mapping[str, Sequence[str]]) -> Domain:
    classes = {f"{each} ({name})" if each in twins else each: each for each in images.classes}
    return Domain(name, classes, images.prompt, tuple(images.templates))


def _captions(parts: Sequence[Images]) -> StringArray:
    return StringArray(text for images in parts for text in (images.captions or [""] * len(images)))


def _shared_prompts(parts: Sequence[Images]) -> tuple[str, tuple[str, ...]]:
    """Prompt and templates, if all sets have the same; else the default ones."""
    prompts = {(images.prompt, tuple(images.templates)) for images in parts}
    return prompts.pop() if len(prompts) == 1 else (DEFAULT_TEMPLATE, (DEFAULT_TEMPLATE,))


Choices = Literal["seen", "domain", "all"]
"""Which classes the model chooses among for a test image: those of the tasks learned so far (for a
later task, all); the same, but of the image's own data set; or always all of the stream.
"""
Twins = Literal["separate", "merge"]
"""Two classes with the same name in two data sets: separate classes, or one."""
_BY_NAME = (
    "give streams by the name of their data set: "
    "retouch.Stream.join({'cars': retouch.Stream.split(…), 'flowers': …})"
)


def _images_remedy(value: object) -> str:
    """What to do with a path, or with `Splits`, in place of `Images`."""
    path = repr(str(value)) if isinstance(value, str | Path) else "PATH"
    return (
        "read the images first: "
        f"retouch.Stream.split(*retouch.read_data({path}).train_and_test(), tasks=…)"
    )


@dataclass(frozen=True)
class Task:
    """Some classes, with their training and test images."""

    number: int
    """From 0."""
    classes: tuple[int, ...]
    """Labels of the stream's images."""
    train: Indices
    """Positions in the stream's training images."""
    test: Indices
    """Positions in the stream's test images."""


@dataclass(frozen=True)
class Stream:
    """Labelled images, split into tasks."""

    train: Images
    """The training images of all tasks."""
    test: Images
    """The test images of all tasks."""
    tasks: tuple[Task, ...]
    """In the order in which they are learned."""
    missing_images: int = 0
    """How many images that an earlier run was trained on are no longer available."""
    choices: Choices = "seen"
    """Which classes the model chooses among in evaluation."""
    twins: Twins = "separate"
    """Whether classes of the same name in two data sets count as one in evaluation."""

    @classmethod
    @check_arguments(
        train=_images_remedy,
        test=_images_remedy,
        tasks="give a number of tasks, or a list with the number of classes of each task",
        order="give a seed, or all class names in order",
    )
    def split(
        cls,
        train: Images,
        test: Images,
        tasks: int | Sequence[int] = 10,
        order: int | Sequence[str] = 0,
    ) -> "Stream":
        """Split the classes into tasks.

        Args:
            train: The training images of all tasks.
            test: The test images of all tasks, with the same classes.
            tasks: The number of tasks, or the number of classes of each task.
            order: A seed for the order of the classes, or the class names in order.
        """
        if train.classes != test.classes:
            raise UserError(f"{train.name} and {test.name} do not have the same classes")
        refuse_confusable_classes(train.name, train.classes)
        for images in (train, test):
            refuse_empty(images)
        sizes = _task_sizes(len(train.classes), _as_list(tasks))
        labels = _class_order(train.classes, _as_list(order))
        ends = np.cumsum(sizes)
        task_labels = [labels[end - size : end] for size, end in zip(sizes, ends, strict=True)]
        return cls(
            train,
            test,
            tuple(
                Task(number, tuple(classes), train.of_classes(classes), test.of_classes(classes))
                for number, classes in enumerate(task_labels)
            ),
        )

    @classmethod
    @check_arguments(streams=_BY_NAME)
    def join(
        cls,
        streams: Mapping[str, "Stream"],
        choices: Choices = "domain",
        twins: Twins = "separate",
    ) -> "Stream":
        """A stream of several data sets: all tasks of the first, then all of the second, and so on.

        Every data set keeps its prompts and templates. Two may have a class of the same name.

        Args:
            streams: A stream for each data set, by the name of the data set.
            choices: Which classes the model chooses among for a test image: those of its own data
                set (`domain`, as in MTIL), those of all data sets (`all`, as in X-TAIL), or those
                learned so far (`seen`).
            twins: What two classes of the same name are. `separate` classes are told apart by their
                prompts; with `merge`, to take one for the other is no error.
        """
        _check_join(streams)
        train, test = (
            join_images({name: getattr(stream, part) for name, stream in streams.items()})
            for part in ("train", "test")
        )
        if note := twins_note({n: s.train for n, s in streams.items()}, choices, twins):
            train = replace(train, notes=[*train.notes, note])
        tasks: list[Task] = []
        labels = trained = tested = 0
        for stream in streams.values():
            tasks += [
                Task(
                    len(tasks) + task.number,
                    tuple(label + labels for label in task.classes),
                    task.train + trained,
                    task.test + tested,
                )
                for task in stream.tasks
            ]
            labels += len(stream.train.classes)
            trained, tested = trained + len(stream.train), tested + len(stream.test)
        missing = sum(stream.missing_images for stream in streams.values())
        return cls(train, test, tuple(tasks), missing, choices, twins)

    def with_images(self, train: Images, test: Images) -> "Stream":
        """The same tasks with other images of the same classes, such as decoded ones.

        Args:
            train: The training images; one of each class at least.
            test: The test images.
        """
        for images in (train, test):
            refuse_empty(images)
        tasks = (
            Task(t.number, t.classes, train.of_classes(t.classes), test.of_classes(t.classes))
            for t in self.tasks
        )
        return replace(self, train=train, test=test, tasks=tuple(tasks))

    def domain_of(self, task: Task) -> str:
        """The name of a task's data set; "" if the stream has a single one.

        Args:
            task: A task of the stream.
        """
        name = self.train.classes[task.classes[0]]
        return next((d.name for d in self.train.domains if name in d.classes), "")

    def wait(self, progress: Progress = no_progress) -> None:
        """Wait until all images are decoded, if that is done in the background.

        Args:
            progress: Shows how far it is.
        """
        for images in (self.train, self.test):
            images.store.wait(progress)

    @property
    def classes(self) -> list[int]:
        """All labels, in the order in which they are learned."""
        return list(dict.fromkeys(label for task in self.tasks for label in task.classes))

    def names(self, labels: Sequence[int]) -> list[str]:
        """The names of some classes.

        Args:
            labels: Their labels.
        """
        return [self.train.classes[label] for label in labels]


def _check_join(streams: Mapping[str, Stream]) -> None:
    if not streams:
        raise wrong_argument("streams", streams, _BY_NAME)
    for name, stream in streams.items():
        if stream.train.domains:
            raise UserError(
                f"{name!r} is of several data sets already; give one stream of a single data set "
                "per name"
            )


def _as_list(value: Any) -> Any:
    """A list instead of an array; anything else unchanged."""
    return value.tolist() if isinstance(value, np.ndarray) else value


def _task_sizes(classes: int, tasks: int | Sequence[int]) -> list[int]:
    if not isinstance(tasks, Sequence):
        if not 1 <= tasks <= classes:
            raise UserError(
                f"{count(classes, 'class')} cannot be split into {tasks} tasks; choose 1 to "
                f"{classes}"
            )
        return [int(classes // tasks + (number < classes % tasks)) for number in range(tasks)]
    if min(tasks, default=0) < 1 or sum(tasks) != classes:
        raise UserError(
            f"tasks of {list(tasks)} classes do not add up to the {classes} there are; every task "
            "needs at least one"
        )
    return list(tasks)


def _class_order(classes: Sequence[str], order: int | Sequence[str]) -> list[int]:
    if not isinstance(order, Sequence):
        if order < 0:
            raise UserError(
                f"order={order!r} is not a seed; give 0 or more, or all class names in order"
            )
        return [int(i) for i in np.random.default_rng(order).permutation(len(classes))]
    if sorted(order) != sorted(classes):
        unmatched = sorted(set(order) ^ set(classes))
        problem = f"differ in {unmatched[0]!r}" if unmatched else "differ: a name is listed twice"
        raise UserError(f"the class order and the classes {problem}; list each class once")
    return [list(classes).index(name) for name in order]
