"""Every recipe on a real pre-trained tower: the dual encoder and the data of `../shared`.

    python benchmarks/real_tower.py table1 --datasets gtsrb --epochs 5 --device cuda --out runs/real

The model is the visual tower of OpenAI's CLIP ViT-B/16 with a small text tower (see its README), so
numbers are not the paper's. To save time, the control set is two images of each of ImageNet's
classes, evaluated with seven templates. With `--jobs 5`, five cells run at a time.
"""

import argparse
import importlib.util
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from rich.console import Console

from retouch.bench import Bench, engine, load_suite
from retouch.bench.cells import Options
from retouch.bench.datasets import BenchData
from retouch.bench.live_table import PlainView
from retouch.clip import Clip
from retouch.clip.hf import HuggingFaceClip
from retouch.clip.preprocess import Preprocess
from retouch.clip.torchvision_compat import patch_torchvision
from retouch.data import Images

NAME = "clip-b16-minilm"
TEMPLATES = (
    "itap of a {}.",
    "a bad photo of the {}.",
    "a origami {}.",
    "a photo of the large {}.",
    "a {} in a video game.",
    "art of the {}.",
    "a photo of the small {}.",
)  # the seven that CLIP's authors found to do nearly as well as the eighty


class SmallControlData(BenchData):
    """Benchmark data with a small control set: two images per class, seven templates."""

    def control(self, name: str | None) -> Images | None:
        images = super().control(name)
        if images is None:
            return None
        by_class = np.argsort(images.labels, kind="stable")
        first = np.searchsorted(images.labels[by_class], np.arange(len(images.classes)))
        positions = np.sort(np.concatenate([by_class[first], by_class[first + 1]]))
        return replace(images.subset(positions), templates=TEMPLATES)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("suite")
    options.add_argument("--shared", type=Path, default=Path("../shared"))
    options.add_argument("--datasets", default="gtsrb")
    options.add_argument("--methods", default="")
    options.add_argument("--epochs", type=int)
    options.add_argument("--tasks", type=int)
    options.add_argument("--lr", default="")
    options.add_argument("--device", default="cpu")
    options.add_argument("--jobs", type=int)
    options.add_argument("--fp32", action="store_true")
    options.add_argument("--out", type=Path, default=Path("runs/real"))
    args = options.parse_args()
    data = SmallControlData(
        partial(load, args.shared / "models" / NAME, args.device),
        args.shared / "data",
        args.out.parent / "cache",
        str(args.shared / "data" / "coco-val-200"),
    )
    cell_options = Options(
        datasets=tuple(args.datasets.split(",")),
        epochs=args.epochs,
        tasks=args.tasks,
        precision=None if args.fp32 else "bf16",
        lr=tuple(float(rate) for rate in args.lr.split(",") if rate),
    )
    suite = load_suite(args.suite).only([m for m in args.methods.split(",") if m])
    bench = Bench(suite, data, NAME, args.out, cell_options)
    bench.run(engine(jobs=args.jobs, device=args.device), PlainView(Console()))


def load(folder: Path, device: str = "cpu") -> Clip:
    """The model as the `load.py` in its folder builds it."""
    patch_torchvision()
    module = _module(folder / "load.py")
    model, tokenizer = module.load(folder)
    clip = HuggingFaceClip(model, tokenizer, Preprocess(size=(224, 224), shortest=224), NAME)
    return clip.to(torch.device(device))


def _module(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("shared_load", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def print_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
