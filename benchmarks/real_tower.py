"""Every recipe on a real pre-trained tower: the dual encoder and the data of `../shared`.

    python benchmarks/real_tower.py table1 --datasets gtsrb --epochs 5 --device cuda --out runs/real

The model is the visual tower of OpenAI's CLIP ViT-B/16 with a small text tower (see its README), so
numbers are not the paper's. The control set is two images of each of ImageNet's classes, judged
with seven templates, to save time. Several of these may run at once: each takes a cell that no
other has.
"""

import argparse
import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np

from retouch.bench import Bench, load_suite
from retouch.bench.cell import Options
from retouch.bench.field import Field
from retouch.clip import Clip
from retouch.clip.hf import HuggingFaceClip
from retouch.clip.pixels import Pixels
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


class Quickly(Field):
    """A field whose control set is judged quickly: two images of each class, seven templates."""

    def control(self, name: str | None) -> Images | None:
        found = super().control(name)
        if found is None:
            return None
        by_class = np.argsort(found.labels, kind="stable")
        first = np.searchsorted(found.labels[by_class], np.arange(len(found.classes)))
        two = np.sort(np.concatenate([by_class[first], by_class[first + 1]]))
        return replace(found.some(two), templates=TEMPLATES)


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
    options.add_argument("--fp32", action="store_true")
    options.add_argument("--out", type=Path, default=Path("runs/real"))
    asked = options.parse_args()
    on = Quickly(
        lambda: load(asked.shared / "models" / NAME).to(asked.device),  # type: ignore[arg-type]
        asked.shared / "data",
        asked.out.parent / "cache",
        str(asked.shared / "data" / "coco-val-200"),
    )
    wanted = Options(
        datasets=tuple(asked.datasets.split(",")),
        epochs=asked.epochs,
        tasks=asked.tasks,
        precision=None if asked.fp32 else "bf16",
        lr=tuple(float(rate) for rate in asked.lr.split(",") if rate),
    )
    suite = load_suite(asked.suite).only([m for m in asked.methods.split(",") if m])
    made = Bench(suite, on, NAME, asked.out, wanted, say=say)
    for cell in made.cells:
        claim = cell.folder(asked.out) / "claim"
        claim.parent.mkdir(parents=True, exist_ok=True)
        try:
            claim.open("x").close()
        except FileExistsError:
            continue
        try:
            made.run_cell(cell)
        except Exception as why:  # one that fails must not cost the others
            say(f"{cell.row}, {cell.dataset}: FAILED: {type(why).__name__}: {str(why)[:200]}")
            claim.unlink()


def load(folder: Path) -> Clip:
    """The model as its own `load.py` makes it."""
    module = _module(folder / "load.py")
    model, tokenizer = module.load(folder)
    return HuggingFaceClip(model, tokenizer, Pixels(size=(224, 224), shortest=224), NAME)


def _module(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("shared_load", file)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
