"""A first `learn` on a processor: ViT-B/16 with random weights, 8 classes of 25 photos.

    python benchmarks/first_learn_cpu.py                          # two threads, as long as it takes
    python benchmarks/first_learn_cpu.py --threads 8
    python benchmarks/first_learn_cpu.py --epochs 2 --photos 10   # shorter

The whole of it, with folders, reports and evaluations, is run twice in one process: with frozen
blocks computed once per image, and without. Seconds of the wall clock and of processor time (which
other processes disturb less), and whether both gave the same weights to the bit.
"""

import argparse
import json
import resource
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from shapes import SHAPES, model_of

import retouch
from retouch.data import Stream
from retouch.methods import recipe
from retouch.sparse import fingerprint
from retouch.train.defaults import choose_defaults


def write_photos(folder: Path, classes: int, photos: int) -> None:
    """JPEGs of 640 × 480, one folder per class: a colour with noise in large squares."""
    rng = np.random.default_rng(0)
    for label in range(classes):
        (folder / f"class {label}").mkdir(parents=True)
        colour = rng.integers(40, 216, 3)
        for number in range(photos):
            squares = np.clip(rng.normal(colour, 40, (12, 16, 3)), 0, 255).astype(np.uint8)
            image = Image.fromarray(squares).resize((640, 480), Image.Resampling.BICUBIC)
            image.save(folder / f"class {label}" / f"{number}.jpg", quality=90)


def processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def learn(
    args: argparse.Namespace, photos: Path, out: Path, reuse: bool
) -> tuple[float, float, str]:
    """Wall-clock seconds, processor seconds, and a fingerprint of the weights."""
    clip = model_of(args.shape, torch.device("cpu"))
    began, busy = time.monotonic(), processor_seconds()
    decoded = retouch.read_data(photos).map(partial(retouch.cached, preprocess=clip.preprocess))
    train, test = decoded.train_and_test()
    stream = Stream.split(train, test, tasks=args.tasks)
    sizes = [len(task.train) for task in stream.tasks]
    requested = {"epochs": args.epochs, "batch": args.batch}
    chosen = choose_defaults(clip, recipe(args.method), requested, sizes, args.classes)
    settings = chosen.settings.model_copy(update={"reuse_frozen": reuse})
    retouch.teach(clip, stream, chosen.method, settings=settings, out=out)
    return time.monotonic() - began, processor_seconds() - busy, fingerprint(clip.model)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--shape", choices=SHAPES, default="b16")
    options.add_argument("--method", default="spu+")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--classes", type=int, default=8)
    options.add_argument("--photos", type=int, default=25, help="per class")
    options.add_argument("--tasks", type=int, default=1)
    options.add_argument("--epochs", type=int, help="default: as `learn` chooses")
    options.add_argument("--batch", type=int, help="default: as `learn` chooses")
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    measured = {}
    with tempfile.TemporaryDirectory() as folder:
        photos = Path(folder) / "photos"
        write_photos(photos, args.classes, args.photos)
        for name, reuse in (("once per image", True), ("in every step", False)):
            wall, busy, weights = learn(args, photos, Path(folder) / name, reuse)
            measured[name] = {"wall": round(wall, 1), "busy": round(busy, 1), "weights": weights}
            sys.stderr.write(f"frozen blocks {name}: {wall:.1f} s, {busy:.1f} s of processor\n")
    ours, before = measured.values()
    ratios = {key: round(ours[key] / before[key], 3) for key in ("wall", "busy")}
    same = ours["weights"] == before["weights"]
    sys.stdout.write(json.dumps({**measured, "ratio": ratios, "same bits": same}, indent=1) + "\n")


if __name__ == "__main__":
    main()
