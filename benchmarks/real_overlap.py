"""Which weights tasks share on a real pre-trained tower: four tasks of ten birds each, on a CPU.

    python benchmarks/real_overlap.py --out runs/birds
    retouch overlap runs/birds --tower image

The visual tower is that of OpenAI's CLIP ViT-B/16 (see `real_tower.py`). Each task has 40 images,
all of which are scored, and a single epoch at a low learning rate, since only its selection is of
interest. With `--twice`, two tasks select twice instead, each time on 40 different images, before
any training. Either takes about five minutes on one core.
"""

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from real_tower import NAME, load
from same_task_overlap import SubsetContext, compare

import retouch
from retouch.clip.losses import pair_loss
from retouch.methods.updates.selective import SelectiveUpdate
from retouch.torchvision_compat import patch_torchvision

CLASSES_PER_TASK, IMAGES_PER_CLASS = 10, 4


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--shared", type=Path, default=Path("../shared"))
    options.add_argument("--out", type=Path, default=Path("runs/birds"))
    options.add_argument("--twice", action="store_true")
    args = options.parse_args()
    patch_torchvision()
    clip = load(args.shared / "models" / NAME)
    train, test = retouch.read_data(str(args.shared / "data" / "cub200")).train_and_test()
    spu = retouch.recipe("spu", {"update.share": 1.0})
    settings = retouch.Settings(epochs=1, batch=16, lr=1e-5)
    if not args.twice:
        splits = first_images(train, 4, IMAGES_PER_CLASS), first_images(test, 4, 1)
        stream = retouch.Stream.split(*splits, tasks=4)
        only_deltas = {"store_images": False, "per_class": False}
        retouch.teach(clip, stream, spu, settings=settings, out=args.out, **only_deltas)
        return
    images = first_images(train, 2, 2 * IMAGES_PER_CLASS)
    stream = retouch.Stream.split(images, images, tasks=2)
    loss = partial(pair_loss, loss=spu.loss, objective=spu.objective)
    contexts = [SubsetContext(clip, stream, task, settings, loss) for task in stream.tasks]
    for context in contexts:
        context.images = CLASSES_PER_TASK * IMAGES_PER_CLASS
    compare(contexts, SelectiveUpdate())


def first_images(images: retouch.Images, tasks: int, per_class: int) -> retouch.Images:
    """The first images of the first classes."""
    classes = range(tasks * CLASSES_PER_TASK)
    positions = [np.flatnonzero(images.labels == label)[:per_class] for label in classes]
    subset = images.subset(np.sort(np.concatenate(positions)))
    return replace(subset, classes=subset.classes[: len(classes)])


if __name__ == "__main__":
    main()
