"""A stream of tasks: disjoint sets of classes that arrive one after the other."""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from retouch.data.image_store import Indices
from retouch.data.images import Images, refuse_duplicate_classes, refuse_empty
from retouch.errors import UserError
from retouch.plural import count


@dataclass(frozen=True)
class Task:
    """Some classes, with their images to learn from and to evaluate on."""

    number: int
    """Its place in the stream, from 0."""
    classes: tuple[int, ...]
    """Labels of its classes."""
    train: Indices
    """Positions in the stream's training images."""
    test: Indices
    """Positions in the stream's test images."""


@dataclass(frozen=True)
class Stream:
    """Labelled images, split into tasks."""

    train: Images
    """All images to learn from."""
    test: Images
    """All images to evaluate on, with the same classes."""
    tasks: tuple[Task, ...]
    """The tasks, in order."""
    missing_images: int = 0
    """How many images earlier tasks were learned from that are no longer available."""

    @classmethod
    def split(
        cls,
        train: Images,
        test: Images,
        tasks: int | Sequence[int] = 10,
        order: int | Sequence[str] = 0,
    ) -> "Stream":
        """Split labelled images into tasks with disjoint classes.

        Args:
            train: Images to learn from.
            test: Images to evaluate on, with the same classes.
            tasks: The number of tasks, or how many classes each one gets.
            order: The order of the classes: a seed, or all class names in order.
        """
        _check_kinds(train, test)
        if train.classes != test.classes:
            raise UserError(f"{train.name} and {test.name} do not have the same classes")
        refuse_duplicate_classes(train.name, train.classes)
        for images in (train, test):
            refuse_empty(images)
        sizes = _sizes(len(train.classes), _plain(tasks))
        labels = _ordered(train.classes, _plain(order))
        ends = np.cumsum(sizes)
        dealt = [labels[end - size : end] for size, end in zip(sizes, ends, strict=True)]
        return cls(
            train,
            test,
            tuple(
                Task(number, tuple(own), train.of_classes(own), test.of_classes(own))
                for number, own in enumerate(dealt)
            ),
        )

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


def _check_kinds(*parts: object) -> None:
    """From Python anything may come: a path, or both parts at once."""
    for name, value in zip(("train", "test"), parts, strict=True):
        if not isinstance(value, Images):
            place = repr(str(value)) if isinstance(value, str | Path) else "PATH"
            shown = place if isinstance(value, str | Path) else f"a {type(value).__name__}"
            raise UserError(
                f"{name} cannot be {shown}; read the images first: "
                f"retouch.Stream.split(*retouch.read_data({place}).train_and_test(), tasks=…)"
            )


def _plain(value: Any) -> Any:
    """A list in place of an array."""
    return value.tolist() if isinstance(value, np.ndarray) else value


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _sizes(classes: int, tasks: int | Sequence[int]) -> list[int]:
    if not isinstance(tasks, Sequence):
        if not _is_whole(tasks):
            raise UserError(_no_tasks(tasks))
        if not 1 <= tasks <= classes:
            raise UserError(
                f"{tasks} tasks cannot be made of {count(classes, 'class')}; choose 1 to {classes}"
            )
        return [int(classes // tasks + (number < classes % tasks)) for number in range(tasks)]
    if not all(map(_is_whole, tasks)):
        raise UserError(_no_tasks(tasks))
    if min(tasks, default=0) < 1 or sum(tasks) != classes:
        raise UserError(
            f"tasks of {list(tasks)} classes do not add up to the {classes} there are; every task "
            "needs at least one"
        )
    return list(tasks)


def _no_tasks(tasks: object) -> str:
    wanted = "a number of tasks, or a list with the number of classes of each"
    return f"tasks={tasks!r} cannot be; give {wanted}"


def _ordered(classes: Sequence[str], order: int | Sequence[str]) -> list[int]:
    if not isinstance(order, Sequence):
        if not _is_whole(order) or order < 0:
            raise UserError(
                f"order={order!r} is no seed; give 0 or more, or all class names in order"
            )
        return [int(i) for i in np.random.default_rng(order).permutation(len(classes))]
    if isinstance(order, str) or not all(isinstance(name, str) for name in order):
        raise UserError(f"order={order!r} is no list of names; give a seed, or all class names")
    if sorted(order) != sorted(classes):
        odd = sorted(set(order) ^ set(classes)) or ["a name that stands there twice"]
        raise UserError(
            f"the class order and the classes differ in {odd[0]!r}; name each class once"
        )
    return [list(classes).index(name) for name in order]
