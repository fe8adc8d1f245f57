"""What tasks share on a real pre-trained tower: four tasks of ten birds each, on a processor.

    python benchmarks/real_overlap.py --out runs/birds
    retouch overlap runs/birds --tower image

The visual tower is that of OpenAI's CLIP ViT-B/16 (see `real_tower.py`). Each task has 40 images,
all of which are scored, and a single epoch at a low rate, since only its choice is of interest.
With `--twice`, two tasks choose twice instead, each time by 40 images of their own, before anything
is learned. Either takes about five minutes on a core.
"""

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from real_tower import NAME, load
from same_task_overlap import Part, compare

import retouch
from retouch.clip.losses import pair_loss
from retouch.clip.torchvision_compat import patch_torchvision
from retouch.methods.selective import SelectiveUpdate

A_TASK, IMAGES = 10, 4  # classes; images of each


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--shared", type=Path, default=Path("../shared"))
    options.add_argument("--out", type=Path, default=Path("runs/birds"))
    options.add_argument("--twice", action="store_true")
    asked = options.parse_args()
    patch_torchvision()
    clip = load(asked.shared / "models" / NAME)
    train, test = retouch.read_data(str(asked.shared / "data" / "cub200")).train_and_test()
    spu = retouch.recipe("spu", {"update.share": 1.0})
    settings = retouch.Settings(epochs=1, batch=16, lr=1e-5)
    if not asked.twice:
        stream = retouch.Stream.split(few(train, 4, IMAGES), few(test, 4, 1), tasks=4)
        only_deltas = {"store_images": False, "per_class": False}
        retouch.teach(clip, stream, spu, settings=settings, out=asked.out, **only_deltas)
        return
    own = few(train, 2, 2 * IMAGES)
    stream = retouch.Stream.split(own, own, tasks=2)
    loss = partial(pair_loss, loss=spu.loss, objective=spu.objective)
    lessons = [Part(clip, stream, task, settings, loss) for task in stream.tasks]
    for context in lessons:
        context.images = A_TASK * IMAGES
    compare(lessons, SelectiveUpdate())


def few(images: retouch.Images, tasks: int, each: int) -> retouch.Images:
    """The first images of the first classes."""
    classes = range(tasks * A_TASK)
    kept = [np.flatnonzero(images.labels == label)[:each] for label in classes]
    some = images.subset(np.sort(np.concatenate(kept)))
    return replace(some, classes=some.classes[: len(classes)])


if __name__ == "__main__":
    main()
