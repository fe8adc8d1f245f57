"""Judge a model: what it knows of each task, and of what it could do before."""

from collections.abc import Sequence

import torch
from torch import Tensor

from retouch.clip import Clip
from retouch.clip.prompts import classifier
from retouch.data.ahead import ahead, send
from retouch.data.cache import Progress
from retouch.data.images import Images
from retouch.data.pictures import Indices
from retouch.data.stream import Stream
from retouch.learn.drift import drift_between, word_features
from retouch.learn.results import Drift, Row


@torch.no_grad()
def image_features(
    clip: Clip, images: Images, indices: Indices, progress: Progress | None = None
) -> Tensor:
    """Features of these images [N, D]."""
    batch = 64 if clip.device.type == "cpu" else 256  # what fits a processor's cache is faster
    parts = [indices[i : i + batch] for i in range(0, len(indices), batch)]
    shown = progress(parts, f"Judging {images.name}", len(indices)) if progress else parts
    read = ahead(lambda part: send(images.read(part, clip.pixels), clip.device), shown)
    return torch.cat([clip.image_features(pixels) for _, pixels in read])


def percent_right(similarity: Tensor, labels: Tensor, choices: Sequence[int]) -> float:
    """How many images find their own class among the `choices`, in percent.

    `similarity` is [N, all classes]; `choices` are columns of it.
    """
    columns = torch.tensor(list(choices), device=similarity.device)
    found = columns[similarity[:, columns].argmax(dim=1)]
    return 100 * (found == labels.to(found.device)).double().mean().item()


class Judge:
    """Judges after every task, always on the same images."""

    def __init__(self, stream: Stream, control: Images | None = None) -> None:
        self._stream = stream
        self._control = control
        self._words: Tensor | None = None

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
        texts = classifier(clip, test.classes, test.templates)
        seen = list(dict.fromkeys(c for task in stream.tasks[:learned] for c in task.classes))
        found: list[float | None] = []
        for task in (stream.tasks[number] for number in which):
            if not len(task.test):
                found.append(None)
                continue
            similarity = image_features(clip, test, task.test) @ texts.T
            labels = torch.from_numpy(test.labels[task.test])
            choices = seen if task.number < learned else stream.classes
            found.append(percent_right(similarity, labels, choices))
        return found

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
        texts = classifier(clip, images.classes, images.templates)
        everything = images.of_classes(range(len(images.classes)))
        similarity = image_features(clip, images, everything) @ texts.T
        return percent_right(
            similarity, torch.from_numpy(images.labels), range(len(images.classes))
        )
