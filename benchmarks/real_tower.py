"""Every recipe on a real pre-trained tower: the dual encoder and the data of `../shared`.

    python benchmarks/real_tower.py table1 --datasets gtsrb --epochs 5 --device cuda --out runs/real

The model is the visual tower of OpenAI's CLIP ViT-B/16 with a small text tower (see its README), so
numbers are not the paper's. The control set is all 5,000 images of `imagenet-val-5k`, evaluated
with seven templates. One process runs one cell after the other on one model, whose weights are
restored in between, so that with `--compile` the towers are compiled and captured once. Only the
end of a run is evaluated, unless `--each-task` asks for more.
"""

import argparse
import importlib.util
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from rich.console import Console

from retouch.bench import Bench, load_suite
from retouch.bench.cells import Options
from retouch.bench.datasets import BenchData
from retouch.bench.engines import Serial
from retouch.bench.live_table import PlainView
from retouch.bench.runner import Incomplete
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


@dataclass
class ControlData(BenchData):
    """Benchmark data with a control set of some images per class and seven templates."""

    per_class: int = 5

    def control(self, name: str | None) -> Images | None:
        images = super().control(name)
        if images is None:
            return None
        by_class = np.argsort(images.labels, kind="stable")
        first = np.searchsorted(images.labels[by_class], np.arange(len(images.classes)))
        chosen = [by_class[first + number] for number in range(self.per_class)]
        return replace(images.subset(np.sort(np.concatenate(chosen))), templates=TEMPLATES)


class SharedModel:
    """The same model for every cell, with its pre-trained weights."""

    def __init__(self, clip: Clip) -> None:
        self._clip = clip
        self._weights = {name: t.clone() for name, t in clip.model.state_dict().items()}

    def __call__(self) -> Clip:
        self._clip.model.load_state_dict(self._weights)
        self._clip.model.requires_grad_(True)
        return self._clip


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("suite")
    options.add_argument("--shared", type=Path, default=Path("../shared"))
    options.add_argument("--datasets", default="gtsrb", help="as in gtsrb:5,cub:5, with epochs")
    options.add_argument("--methods", default="")
    options.add_argument("--epochs", type=int)
    options.add_argument("--tasks", type=int)
    options.add_argument("--lr", default="")
    options.add_argument("--device", default="cpu")
    options.add_argument("--compile", action="store_true")
    options.add_argument("--each-task", action="store_true", help="evaluate after every task")
    options.add_argument("--control-images", type=int, default=5, help="control images per class")
    options.add_argument("--seeds", default="0")
    options.add_argument("--fp32", action="store_true")
    options.add_argument("--out", type=Path, default=Path("runs/real"))
    args = options.parse_args()
    clip = load(args.shared / "models" / NAME, args.device)
    data = ControlData(
        SharedModel(clip),
        args.shared / "data",
        args.out.parent / "cache",
        str(args.shared / "data" / "coco-val-200"),
        per_class=args.control_images,
    )
    cell_options = Options(
        epochs=args.epochs,
        tasks=args.tasks,
        precision=None if args.fp32 else "bf16",
        compile=args.compile,
        seeds=tuple(int(seed) for seed in args.seeds.split(",")),
        lr=tuple(float(rate) for rate in args.lr.split(",") if rate),
    )
    suite = load_suite(args.suite).only([m for m in args.methods.split(",") if m])
    clip.bf16 = not args.fp32
    with clip.fast("inductor" if args.compile else None):
        for row in suite.rows:
            for dataset, _, epochs in (text.partition(":") for text in args.datasets.split(",")):
                own = replace(cell_options, datasets=(dataset,))
                own = replace(own, epochs=int(epochs)) if epochs else own
                bench = Bench(
                    suite.model_copy(update={"rows": (row,)}),
                    data,
                    NAME,
                    args.out,
                    own,
                    checkpoints=False,
                    evaluate_each_task=args.each_task,
                )
                with suppress(Incomplete):
                    bench.run(Serial(), PlainView(Console()))


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
