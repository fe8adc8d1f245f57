"""Judge a model: what it knows of each task, and of what it could do before."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from math import ceil
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from retouch.clip import Clip
from retouch.clip.encode import encode_rank_images
from retouch.clip.zero_shot import PromptEnsemble
from retouch.data.cache import Progress
from retouch.data.image_store import Indices
from retouch.data.images import Images
from retouch.data.prefetch import prefetch, read_to_device, to_device
from retouch.data.stream import Stream
from retouch.distributed import collectives
from retouch.errors import NotFinite
from retouch.evaluate.drift import drift_between, word_features
from retouch.evaluate.joint_accuracy import Encoded, joint_accuracy
from retouch.evaluate.results import Drift, Joint, Row


class ImageSubset(NamedTuple):
    """Some images of a set."""

    images: Images
    indices: Indices


def image_features(
    clip: Clip, images: Images, indices: Indices, progress: Progress | None = None
) -> Tensor:
    """Features of these images [N, D]; each process encodes its part, and all get all."""
    (found,) = encode_image_sets(clip, [ImageSubset(images, indices)], progress)
    return found


def encode_image_sets(
    clip: Clip, sets: Sequence[ImageSubset], progress: Progress | None = None
) -> Iterator[Tensor]:
    """The same of each set, whose images are read from now on, whatever a GPU does meanwhile."""
    # What fits a processor's cache is faster; a GPU takes more than a few threads can load.
    batch, depth = (64, 2) if clip.device.type == "cpu" else (256, 8)
    orders = [np.argsort(indices) for _, indices in sets]  # as they lie: many are read at once
    counts = [
        max(1, ceil(collectives.largest_rank_slice(len(indices)) / batch)) for _, indices in sets
    ]

    def parts() -> Iterator[ImageSubset]:
        for (images, indices), order, count in zip(sets, orders, counts, strict=True):
            own = indices[order][collectives.rank_slice(len(indices))]
            # Nearly equal, so that the compiler starts for one shape; as many in all processes.
            todo: Iterable[Indices] = np.array_split(own, count)
            if progress:
                todo = progress(todo, f"Judging {images.name}", len(own))
            yield from (ImageSubset(images, part) for part in todo)

    def read(part: ImageSubset) -> Tensor:
        return read_to_device(part.images, part.indices, clip.preprocess, clip.device)

    loaded = (pixels for _, pixels in prefetch(read, parts(), depth))
    places = [to_device(torch.from_numpy(np.argsort(order)), clip.device) for order in orders]

    @torch.no_grad()
    def features() -> Iterator[Tensor]:
        for count, place in zip(counts, places, strict=True):
            own = torch.cat([encode_rank_images(clip, pixels) for pixels in islice(loaded, count)])
            yield collectives.gather(own, len(place), "judging")[place]

    found: Iterator[Tensor] = features()
    return found


def nearest(similarity: Tensor, choices: Sequence[int]) -> Indices:
    """Of each row the most similar of these columns."""
    columns = torch.tensor(choices)
    best = similarity[:, columns.to(similarity.device)].argmax(dim=1)
    found: Indices = columns[best.cpu()].numpy()
    return found


def _refuse_nan(parts: Sequence[Encoded]) -> None:
    """The nearest class of an image without finite features would be the first, by accident."""
    good = [part.features.isfinite().all(dim=1) & part.texts.isfinite().all() for part in parts]
    if good and not (whole := torch.cat(good)).all():
        bad = int((~whole).sum())
        raise NotFinite(f"features that are infinite or NaN, of {bad:,} of {len(whole):,} images")


def percent(found: Indices, labels: Indices) -> float | None:
    """How many are right; None where there are none."""
    return 100 * float((found == labels).mean()) if len(labels) else None


def _labels(asked: ImageSubset) -> Indices:
    found: Indices = asked.images.labels[asked.indices]
    return found


class Evaluator:
    """Evaluates a model after every task, always on the same images.

    Args:
        stream: The tasks to evaluate on.
        control: Images of what the model could do before, which no task teaches.
    """

    def __init__(self, stream: Stream, control: Images | None = None) -> None:
        self._stream = stream
        self._control = control
        self._words: Tensor | None = None
        self._prompts: dict[int, PromptEnsemble] = {}

    def begin(self, clip: Clip) -> None:
        """Encode everyday words before anything is learned, to measure their drift later.

        Args:
            clip: The model before the first task.
        """
        self._words = word_features(clip)

    def __call__(self, clip: Clip, learned: int) -> Row:
        """Accuracies when so many tasks are learned; every image passes the visual tower once."""
        every = range(len(self._stream.tasks))
        tests, control = self._encode(clip, self._tests(every), self._controls())
        return Row(
            tasks=self._right_by_task(tests, learned, every),
            control=self._right_of_control(control),
            joint=self._joint(tests, control, learned),
            drift=self._drift(clip, learned),
        )

    def _joint(self, tests: Encoded | None, control: Encoded | None, learned: int) -> Joint | None:
        """Over the classes learned so far, or all of them before the first task, and control."""
        if tests is None or control is None:
            return None
        known = self._seen(learned) if learned else self._stream.classes
        tasks = self._stream.tasks[: learned or None]
        images = sum(len(task.test) for task in tasks)  # tasks lie in the order of the stream
        part = tests._replace(
            features=tests.features[:images], labels=tests.labels[:images], choices=known
        )
        return joint_accuracy(part, control)

    def _drift(self, clip: Clip, learned: int) -> Drift | None:
        """When all is learned; in between it would cost more than it tells."""
        if self._words is None or learned < len(self._stream.tasks):
            return None
        return drift_between(self._words, word_features(clip))

    def tasks(self, clip: Clip, learned: int, which: Sequence[int]) -> list[float | None]:
        """The accuracy on some tasks, in percent; None where there are no images.

        Args:
            clip: The model.
            learned: How many tasks are learned; later ones are evaluated over all classes of the
                stream.
            which: The numbers of the tasks.
        """
        (tests,) = self._encode(clip, self._tests(which))
        return self._right_by_task(tests, learned, which)

    def control(self, clip: Clip) -> float | None:
        """The accuracy on the control set, in percent.

        Args:
            clip: The model.
        """
        (control,) = self._encode(clip, self._controls())
        return self._right_of_control(control)

    def _tests(self, which: Sequence[int]) -> ImageSubset | None:
        own = [self._stream.tasks[number].test for number in which]
        everything = np.concatenate([np.empty(0, np.int64), *own])
        return ImageSubset(self._stream.test, everything) if len(everything) else None

    def _controls(self) -> ImageSubset | None:
        images = self._control
        return ImageSubset(images, np.arange(len(images))) if images else None

    def _encode(self, clip: Clip, *sets: ImageSubset | None) -> list[Encoded | None]:
        """Features of the images and of all classes of their set.

        While a GPU encodes the prompts, images are read; and nobody waits for it in between.
        """
        features = encode_image_sets(clip, [asked for asked in sets if asked])
        texts = [self._texts(clip, asked.images) for asked in sets if asked]
        pairs = zip(features, texts, strict=True)
        parts = [
            asked and Encoded(*next(pairs), asked.images.classes, _labels(asked)) for asked in sets
        ]
        _refuse_nan([part for part in parts if part])
        return parts

    def _right_by_task(
        self, tests: Encoded | None, learned: int, which: Sequence[int]
    ) -> list[float | None]:
        stream = self._stream
        tasks = [stream.tasks[number] for number in which]
        if tests is None:
            return [None] * len(tasks)
        similarity = tests.features @ tests.texts.T
        choices = {True: self._seen(learned), False: stream.classes}  # of a learned task, or not
        found = {
            known: nearest(similarity, choices[known]) for known in {n < learned for n in which}
        }
        rows = np.split(np.arange(len(similarity)), np.cumsum([len(t.test) for t in tasks])[:-1])
        return [
            percent(found[task.number < learned][own], stream.test.labels[task.test])
            for task, own in zip(tasks, rows, strict=True)
        ]

    def _seen(self, learned: int) -> list[int]:
        """The classes of the first so many tasks."""
        tasks = self._stream.tasks[:learned]
        return list(dict.fromkeys(label for task in tasks for label in task.classes))

    def _right_of_control(self, control: Encoded | None) -> float | None:
        if control is None:
            return None
        similarity = control.features @ control.texts.T
        return percent(nearest(similarity, range(len(control.names))), control.labels)

    def _texts(self, clip: Clip, images: Images) -> Tensor:
        """Features of the classes, whose prompts are cut into tokens once."""
        if id(images) not in self._prompts:
            self._prompts[id(images)] = PromptEnsemble(clip, images.classes, images.templates)
        return self._prompts[id(images)].features(clip)

    def accuracy(self, clip: Clip, learned: int) -> float | None:
        """The accuracy over all classes learned so far, in percent.

        Args:
            clip: The model.
            learned: How many tasks are learned.
        """
        images = [len(task.test) for task in self._stream.tasks[:learned]]
        pairs = zip(self.tasks(clip, learned, range(learned)), images, strict=True)
        known = [(value, count) for value, count in pairs if value is not None]
        total = sum(count for _, count in known)
        return sum(value * count for value, count in known) / total if total else None
