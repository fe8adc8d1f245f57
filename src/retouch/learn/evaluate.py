"""Judge a model: what it knows of each task, and of what it could do before."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from math import ceil
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from retouch.clip import Clip
from retouch.clip.encode import own_images
from retouch.clip.prompts import Ensemble
from retouch.data.ahead import ahead, read_to, send
from retouch.data.cache import Progress
from retouch.data.images import Images
from retouch.data.pictures import Indices
from retouch.data.stream import Stream
from retouch.devices import ranks
from retouch.errors import NotFinite
from retouch.learn.drift import drift_between, word_features
from retouch.learn.results import Drift, Row


class Asked(NamedTuple):
    """Some images of a set."""

    images: Images
    indices: Indices


def image_features(
    clip: Clip, images: Images, indices: Indices, progress: Progress | None = None
) -> Tensor:
    """Features of these images [N, D]; each process encodes its part, and all get all."""
    (found,) = encoded(clip, [Asked(images, indices)], progress)
    return found


def encoded(
    clip: Clip, sets: Sequence[Asked], progress: Progress | None = None
) -> Iterator[Tensor]:
    """The same of each set, whose images are read from now on, whatever a GPU does meanwhile."""
    # What fits a processor's cache is faster; a GPU takes more than a few threads can load.
    batch, depth = (64, 2) if clip.device.type == "cpu" else (256, 8)
    orders = [np.argsort(indices) for _, indices in sets]  # as they lie: many are read at once
    counts = [max(1, ceil(ranks.most(len(indices)) / batch)) for _, indices in sets]

    def parts() -> Iterator[Asked]:
        for (images, indices), order, count in zip(sets, orders, counts, strict=True):
            own = indices[order][ranks.own(len(indices))]
            # Nearly equal, so that the compiler starts for one shape; as many in all processes.
            todo: Iterable[Indices] = np.array_split(own, count)
            if progress:
                todo = progress(todo, f"Judging {images.name}", len(own))
            yield from (Asked(images, part) for part in todo)

    def read(part: Asked) -> Tensor:
        return read_to(part.images, part.indices, clip.pixels, clip.device)

    loaded = (pixels for _, pixels in ahead(read, parts(), depth))
    places = [send(torch.from_numpy(np.argsort(order)), clip.device) for order in orders]

    @torch.no_grad()
    def features() -> Iterator[Tensor]:
        for count, place in zip(counts, places, strict=True):
            own = torch.cat([own_images(clip, pixels) for pixels in islice(loaded, count)])
            yield ranks.gather(own, len(place), "judging")[place]

    found: Iterator[Tensor] = features()
    return found


def nearest(similarity: Tensor, choices: Sequence[int]) -> Indices:
    """Of each row the most similar of these columns."""
    columns = torch.tensor(choices)
    best = similarity[:, columns.to(similarity.device)].argmax(dim=1)
    found: Indices = columns[best.cpu()].numpy()
    return found


def _refuse_nan(similarities: Sequence[Tensor]) -> None:
    """The nearest class of an image without a finite similarity would be the first, by accident."""
    good = [similarity.isfinite().all(dim=1) for similarity in similarities]
    if good and not (whole := torch.cat(good)).all():
        bad = int((~whole).sum())
        raise NotFinite(f"features that are infinite or NaN, of {bad:,} of {len(whole):,} images")


def percent(found: Indices, labels: Indices) -> float | None:
    """How many are right; None where there are none."""
    return 100 * float((found == labels).mean()) if len(labels) else None


class Judge:
    """Judges after every task, always on the same images."""

    def __init__(self, stream: Stream, control: Images | None = None) -> None:
        self._stream = stream
        self._control = control
        self._words: Tensor | None = None
        self._prompts: dict[int, Ensemble] = {}

    def begin(self, clip: Clip) -> None:
        """See the model before it learns anything."""
        self._words = word_features(clip)

    def __call__(self, clip: Clip, learned: int) -> Row:
        """Accuracies when so many tasks are learned; every image passes the visual tower once."""
        every = range(len(self._stream.tasks))
        tests, control = self._similar(clip, self._tests(every), self._controls())
        return Row(
            tasks=self._right_by_task(tests, learned, every),
            control=self._right_of_control(control),
            drift=self._drift(clip, learned),
        )

    def _drift(self, clip: Clip, learned: int) -> Drift | None:
        """When all is learned; in between it would cost more than it tells."""
        if self._words is None or learned < len(self._stream.tasks):
            return None
        return drift_between(self._words, word_features(clip))

    def tasks(self, clip: Clip, learned: int, which: Sequence[int]) -> list[float | None]:
        """The accuracy on some tasks when so many are learned; None where there are no images."""
        (similarity,) = self._similar(clip, self._tests(which))
        return self._right_by_task(similarity, learned, which)

    def control(self, clip: Clip) -> float | None:
        """Accuracy on what the model could do before, in percent."""
        (similarity,) = self._similar(clip, self._controls())
        return self._right_of_control(similarity)

    def _tests(self, which: Sequence[int]) -> Asked | None:
        own = [self._stream.tasks[number].test for number in which]
        everything = np.concatenate([np.empty(0, np.int64), *own])
        return Asked(self._stream.test, everything) if len(everything) else None

    def _controls(self) -> Asked | None:
        images = self._control
        return Asked(images, np.arange(len(images))) if images else None

    def _similar(self, clip: Clip, *sets: Asked | None) -> list[Tensor | None]:
        """How similar images are to all classes of their set.

        While a GPU encodes the prompts, images are read; and nobody waits for it in between.
        """
        found = encoded(clip, [asked for asked in sets if asked])
        texts = [asked and self._texts(clip, asked.images) for asked in sets]
        similar = [None if text is None else next(found) @ text.T for text in texts]
        _refuse_nan([each for each in similar if each is not None])
        return similar

    def _right_by_task(
        self, similarity: Tensor | None, learned: int, which: Sequence[int]
    ) -> list[float | None]:
        stream = self._stream
        tasks = [stream.tasks[number] for number in which]
        if similarity is None:
            return [None] * len(tasks)
        seen = list(dict.fromkeys(c for task in stream.tasks[:learned] for c in task.classes))
        choices = {True: seen, False: stream.classes}  # of a task that is learned, and of another
        found = {
            known: nearest(similarity, choices[known]) for known in {n < learned for n in which}
        }
        rows = np.split(np.arange(len(similarity)), np.cumsum([len(t.test) for t in tasks])[:-1])
        return [
            percent(found[task.number < learned][own], stream.test.labels[task.test])
            for task, own in zip(tasks, rows, strict=True)
        ]

    def _right_of_control(self, similarity: Tensor | None) -> float | None:
        if similarity is None or self._control is None:
            return None
        every = range(len(self._control.classes))
        return percent(nearest(similarity, every), self._control.labels)

    def _texts(self, clip: Clip, images: Images) -> Tensor:
        """Features of the classes, whose prompts are cut into tokens once."""
        if id(images) not in self._prompts:
            self._prompts[id(images)] = Ensemble(clip, images.classes, images.templates)
        return self._prompts[id(images)].features(clip)

    def accuracy(self, clip: Clip, learned: int) -> float | None:
        """Percent right over all classes learned so far."""
        images = [len(task.test) for task in self._stream.tasks[:learned]]
        pairs = zip(self.tasks(clip, learned, range(learned)), images, strict=True)
        known = [(value, count) for value, count in pairs if value is not None]
        total = sum(count for _, count in known)
        return sum(value * count for value, count in known) / total if total else None
