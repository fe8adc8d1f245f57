"""What two tasks share, beside what two draws of images of one and the same task share.

    python benchmarks/same_task_overlap.py

The gradient of a few images is noisy, so that even one task would not choose the same weights
twice. This scores the built-in signs at the pre-trained weights, each task by two sets of images
that have none in common. It takes half a minute on a processor.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from statistics import fmean

import numpy as np

import retouch
from retouch.analysis.overlap import overlap
from retouch.builtin import sign_images
from retouch.clip.losses import pair_loss
from retouch.data.image_store import Indices
from retouch.methods.selective import SelectiveUpdate
from retouch.methods.task_context import TaskContext


class Part(TaskContext):
    """A lesson whose evidence is one of several parts of its images."""

    part, images = 0, 50

    def scoring_batches(self, share: float, batches: int | None = None) -> list[Indices]:
        order = np.random.default_rng([1, self.task.number]).permutation(self.task.train)
        return self._split(order[self.part * self.images :][: self.images], drop_last=False)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--images", type=int, default=50)
    asked = options.parse_args()
    clip = retouch.load("builtin")
    stream = retouch.Stream.split(sign_images("train", 40), sign_images("test", 2), tasks=5)
    spu, settings = retouch.recipe("spu"), retouch.Settings(batch=32)
    loss = partial(pair_loss, loss=spu.loss, objective=spu.objective)
    lessons = [Part(clip, stream, task, settings, loss) for task in stream.tasks]
    for context in lessons:
        context.images = asked.images
    compare(lessons, SelectiveUpdate())


def compare(lessons: Sequence[Part], way: SelectiveUpdate) -> None:
    """Let every task choose twice, and print what it shares with itself and with the others."""
    chosen = []
    for context in lessons:
        for context.part in (0, 1):
            chosen.append(way.select(context))
    pairs = [(i, j) for i in range(len(chosen)) for j in range(len(chosen)) if i != j]
    say("tower  layer  same task  another task  chance")
    for layer in overlap(chosen).layers:
        values = {pair: layer.weights.overlap(*pair) or 0.0 for pair in pairs}
        same = fmean(v for (i, j), v in values.items() if i // 2 == j // 2)
        other = fmean(v for (i, j), v in values.items() if i // 2 != j // 2)
        shares = f"{100 * same:9.1f} % {100 * other:11.1f} % {100 * layer.weights.chance:5.1f} %"
        say(f"{layer.tower:<5} {layer.name:>6}{shares}")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
