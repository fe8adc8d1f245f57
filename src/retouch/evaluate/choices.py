"""Which classes a model chooses among when it is evaluated on a stream, and which are the same."""

import numpy as np

from retouch.data.image_store import Indices
from retouch.data.stream import Stream, Task
from retouch.evaluate.class_features import prompt_names
from retouch.evaluate.joint_accuracy import class_ids


def choices(stream: Stream, task: Task, learned: int) -> tuple[int, ...]:
    """The classes that may be predicted for the images of a task (`data.Choices`).

    Args:
        stream: The stream of the task.
        task: The task.
        learned: How many tasks of the stream are learned.
    """
    is_learned = task.number < learned and stream.choices != "all"
    classes = seen_classes(stream, learned) if is_learned else stream.classes
    if stream.choices != "domain":
        return tuple(classes)
    domain = stream.domain_of(task)
    own = {
        label
        for other in stream.tasks
        if stream.domain_of(other) == domain
        for label in other.classes
    }
    return tuple(label for label in classes if label in own)


def seen_classes(stream: Stream, learned: int) -> list[int]:
    """The classes of the first `learned` tasks.

    Args:
        stream: The stream.
        learned: How many tasks of it are learned.
    """
    tasks = stream.tasks[:learned]
    return list(dict.fromkeys(label for task in tasks for label in task.classes))


def ids_of_classes(stream: Stream) -> Indices:
    """By label, what counts as a class of its own: twins have the same id if they are one.

    Args:
        stream: The stream.
    """
    names = prompt_names(stream.test)
    if stream.twins == "separate":
        return np.arange(len(names))
    ids = class_ids(names)
    return np.array([ids[name] for name in names], np.int64)
