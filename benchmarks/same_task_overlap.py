"""Which weights two tasks share, compared with two samples of images of the same task.

    python benchmarks/same_task_overlap.py

The gradient of a few images is noisy, so even the same task would not select the same weights
twice. This scores the built-in signs at the pre-trained weights, each task on two disjoint sets of
images. It takes half a minute on a CPU.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from statistics import fmean

import numpy as np

import retouch
from retouch.analysis.overlap.compute import compute_overlap
from retouch.builtin import sign_images
from retouch.clip.losses import pair_loss
from retouch.data.stores.image_store import Indices
from retouch.methods.task_context import TaskContext
from retouch.methods.updates.selective import SelectiveUpdate


class SubsetContext(TaskContext):
    """A task that is scored on one of several disjoint parts of its images."""

    part, images = 0, 50

    def scoring_batches(self, share: float, batches: int | None = None) -> list[Indices]:
        order = np.random.default_rng([1, self.task.number]).permutation(self.task.train)
        return self._split(order[self.part * self.images :][: self.images], drop_last=False)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--images", type=int, default=50)
    args = options.parse_args()
    clip = retouch.load("builtin")
    stream = retouch.Stream.split(sign_images("train", 40), sign_images("test", 2), tasks=5)
    spu, settings = retouch.recipe("spu"), retouch.Settings(batch=32)
    loss = partial(pair_loss, loss=spu.loss, objective=spu.objective)
    contexts = [SubsetContext(clip, stream, task, settings, loss) for task in stream.tasks]
    for context in contexts:
        context.images = args.images
    compare(contexts, SelectiveUpdate())


def compare(contexts: Sequence[SubsetContext], update: SelectiveUpdate) -> None:
    """Select twice for every task, and print the overlap with itself and with other tasks."""
    selections = []
    for context in contexts:
        for context.part in (0, 1):
            selections.append(update.select(context))
    count = len(selections)
    pairs = [(i, j) for i in range(count) for j in range(count) if i != j]
    print_line("tower  layer  same task  another task  chance")
    for layer in compute_overlap(selections).layers:
        values = {pair: layer.weights.overlap(*pair) or 0.0 for pair in pairs}
        same = fmean(v for (i, j), v in values.items() if i // 2 == j // 2)
        other = fmean(v for (i, j), v in values.items() if i // 2 != j // 2)
        shares = f"{100 * same:9.1f} % {100 * other:11.1f} % {100 * layer.weights.chance:5.1f} %"
        print_line(f"{layer.tower:<5} {layer.name:>6}{shares}")


def print_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
