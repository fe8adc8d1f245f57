"""Judge a model: what it knows of each task, and of what it could do before."""

from collections.abc import Sequence
from math import ceil

import numpy as np
import torch
from torch import Tensor

from retouch.clip import Clip
from retouch.clip.encode import own_images
from retouch.clip.prompts import Ensemble
from retouch.data.ahead import ahead, read_to
from retouch.data.cache import Progress
from retouch.data.images import Images
from retouch.data.pictures import Indices
from retouch.data.stream import Stream
from retouch.devices import ranks
from retouch.learn.drift import drift_between, word_features
from retouch.learn.results import Drift, Row


@torch.no_grad()
def image_features(
    clip: Clip, images: Images, indices: Indices, progress: Progress | None = None
) -> Tensor:
    """Features of these images [N, D]; each process encodes its part, and all get all."""
    # What fits a processor's cache is faster; a GPU takes more than a few threads can load.
    batch, depth = (64, 2) if clip.device.type == "cpu" else (256, 8)
    order = np.argsort(indices)  # as they lie in their file: so many are read at once
    own = indices[order][ranks.own(len(indices))]
    # Nearly equal, so that the compiler starts for one shape; as many in all processes (`encode`).
    parts = np.array_split(own, max(1, ceil(ranks.most(len(indices)) / batch)))
    shown = progress(parts, f"Judging {images.name}", len(own)) if progress else parts
    loaded = ahead(lambda part: read_to(images, part, clip.pixels, clip.device), shown, depth)
    found = torch.cat([own_images(clip, each) for _, each in loaded])
    where = torch.from_numpy(np.argsort(order)).to(clip.device)
    return ranks.gather(found, len(indices), "judging")[where]


def nearest(similarity: Tensor, choices: Sequence[int]) -> Indices:
    """Of each row the most similar of these columns."""
    columns = torch.tensor(choices)
    best = similarity[:, columns.to(similarity.device)].argmax(dim=1)
    found: Indices = columns[best.cpu()].numpy()
    return found


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
        tasks = self.tasks(clip, learned, range(len(self._stream.tasks)))
        return Row(tasks=tasks, control=self.control(clip), drift=self._drift(clip, learned))

    def _drift(self, clip: Clip, learned: int) -> Drift | None:
        """When all is learned; in between it would cost more than it tells."""
        if self._words is None or learned < len(self._stream.tasks):
            return None
        return drift_between(self._words, word_features(clip))

    def tasks(self, clip: Clip, learned: int, which: Sequence[int]) -> list[float | None]:
        """The accuracy on some tasks when so many are learned; None where there are no images."""
        stream, test = self._stream, self._stream.test
        tasks = [stream.tasks[number] for number in which]
        everything = np.concatenate([np.empty(0, np.int64), *(task.test for task in tasks)])
        if not len(everything):
            return [None] * len(tasks)
        similarity = self._similarity(clip, test, everything)
        seen = list(dict.fromkeys(c for task in stream.tasks[:learned] for c in task.classes))
        choices = {True: seen, False: stream.classes}  # of a task that is learned, and of another
        found = {
            known: nearest(similarity, choices[known]) for known in {n < learned for n in which}
        }
        rows = np.split(np.arange(len(everything)), np.cumsum([len(t.test) for t in tasks])[:-1])
        return [
            percent(found[task.number < learned][own], test.labels[task.test])
            for task, own in zip(tasks, rows, strict=True)
        ]

    def _similarity(self, clip: Clip, images: Images, indices: Indices) -> Tensor:
        """Of these images with all classes. While a GPU encodes the prompts, images are read."""
        texts = self._texts(clip, images)
        return image_features(clip, images, indices) @ texts.T

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

    def control(self, clip: Clip) -> float | None:
        """Accuracy on what the model could do before, in percent."""
        images = self._control
        if images is None:
            return None
        similarity = self._similarity(clip, images, np.arange(len(images)))
        return percent(nearest(similarity, range(len(images.classes))), images.labels)
