"""Judge a model: what it knows of each task, and of what it could do before."""

from collections.abc import Sequence

import torch
from torch import Tensor

from retouch.clip import Clip
from retouch.clip.prompts import classifier
from retouch.data.ahead import ahead, send
from retouch.data.images import Images
from retouch.data.pictures import Indices
from retouch.data.stream import Stream
from retouch.learn.results import Row


@torch.no_grad()
def image_features(clip: Clip, images: Images, indices: Indices) -> Tensor:
    """Features of these images [N, D]."""
    batch = 64 if clip.device.type == "cpu" else 256  # what fits a processor's cache is faster
    parts = [indices[i : i + batch] for i in range(0, len(indices), batch)]
    read = ahead(lambda part: send(images.read(part, clip.pixels), clip.device), parts)
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

    def __call__(self, clip: Clip, learned: int) -> Row:
        """Accuracies when so many tasks are learned; every image passes the visual tower once."""
        stream, test = self._stream, self._stream.test
        texts = classifier(clip, test.classes, test.templates)
        seen = [label for task in stream.tasks[:learned] for label in task.classes]
        found = []
        for task in stream.tasks:
            similarity = image_features(clip, test, task.test) @ texts.T
            labels = torch.from_numpy(test.labels[task.test])
            choices = seen if task.number < learned else stream.classes
            found.append(percent_right(similarity, labels, choices))
        return Row(tasks=found, control=self.control(clip))

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
