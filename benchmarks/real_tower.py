"""Methods on a real pre-trained tower: the dual encoder and the data of `../shared`.

    python benchmarks/real_tower.py benchmarks/real_frontier.yaml --device cuda --compile \
        --datasets gtsrb:5,cub:5,cifar100:3 --seeds 1,2,3 --out runs/frontier

The model is the visual tower of OpenAI's CLIP ViT-B/16 with a small text tower (see its README), so
numbers are not the paper's. The control set is all 5,000 images of `imagenet-val-5k` unless
`--control-images` asks for fewer, evaluated with seven templates.

A cell is cheap: one process runs them one after the other on one model, whose weights are restored
in between, so that the towers are compiled and captured once; no weights are written; and only the
model before the first task and after the last is evaluated, unless `--each-task` asks for more.
Rows of full fine-tuning that differ only in an interpolation at the end are trained once
(`shared_training`). The same command goes on where it was stopped, and writes the table and the
figure of what is finished. `--images-per-class 8` learns from eight images of each class, with the
steps and the replay buffer that `retouch learn` chooses for so few. `--part-numbers` calls the
classes A-1042 and the like, names that say nothing about them. With `--features FOLDER` each
image is encoded once for all cells, which only methods allow that never train the visual tower:
classifiers of frozen features, and `text-first` with `after_task.max_error` at 1.
`--stored results/real-tower-frontier/table.json` takes the cells of that table as finished, so that
several machines can share the work one after the other.
"""

import argparse
import importlib.util
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import logistic_regression  # noqa: F401 (a suite may name its class)
import numpy as np
import torch
from frozen_features import NumberedData, looking_up
from rich.console import Console
from shared_training import SharedModel, SharedTrainingBench, Trained
from stored_cells import StoredCells

from retouch.bench import Bench, Suite, load_suite
from retouch.bench.cell import Cell
from retouch.bench.cells import Options
from retouch.bench.datasets import BenchData
from retouch.bench.engines.events import CellResult
from retouch.bench.runner import Incomplete
from retouch.bench.tables.live import PlainView
from retouch.bench.tables.table import tabulate
from retouch.bench.tables.write import write_pareto, write_table
from retouch.clip import Clip
from retouch.clip.hf.model import HuggingFaceClip
from retouch.clip.preprocess import Preprocess
from retouch.data import Images, Splits, Stream, read_data
from retouch.data.registry import find_benchmark
from retouch.data.stores.image_store import Indices
from retouch.methods import BalancedReplay
from retouch.torchvision_compat import patch_torchvision
from retouch.train.defaults import batch_and_epochs, buffer_size

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
    """Benchmark data with a control set of some images per class and seven templates.

    With `images_per_class`, each seed learns from some images of each class, other ones each time.
    With `part_numbers`, classes have names that are no words.
    """

    control_images: int = 5
    images_per_class: int | None = None
    part_numbers: bool = False

    def _open(self, dataset: str) -> Splits:
        assert self.data_root is not None
        domain = self.data_root / "domains" / dataset
        return read_data(domain) if domain.is_dir() else super()._open(dataset)

    def stream(self, cell: Cell) -> Stream:
        stream = super().stream(cell)
        if self.images_per_class is None and not self.part_numbers:
            return stream
        train, test = self._splits[cell.dataset]
        if self.images_per_class is not None:
            train = train.subset(self._few_of_each_class(train, cell.seed))
        if self.part_numbers:
            classes = part_numbers(len(train.classes))
            train, test = (replace(images, classes=classes) for images in (train, test))
        return Stream.split(train, test, tasks=cell.tasks, order=cell.seed)

    def _few_of_each_class(self, train: Images, seed: int) -> Indices:
        shuffled = np.random.default_rng(seed).permutation(len(train))
        by_class = [shuffled[train.labels[shuffled] == n] for n in range(len(train.classes))]
        return np.sort(np.concatenate([images[: self.images_per_class] for images in by_class]))

    def control(self, name: str | None) -> Images | None:
        images = super().control(name)
        if images is None:
            return None
        by_class = np.argsort(images.labels, kind="stable")
        first = np.searchsorted(images.labels[by_class], np.arange(len(images.classes)))
        chosen = [by_class[first + number] for number in range(self.control_images)]
        return replace(images.subset(np.sort(np.concatenate(chosen))), templates=TEMPLATES)


@dataclass
class NumberedControlData(NumberedData, ControlData):
    """The same, for methods that never change the model."""


Data = TypeVar("Data", bound=ControlData)


def main(argv: Sequence[str] | None = None, model: SharedModel | None = None) -> None:
    """Run the cells of a command line, on a model that is loaded already if there is one."""
    args = arguments(argv)
    options = data_options(args)
    suite = load_suite(args.suite).only([m for m in args.methods.split(",") if m])
    if args.features:
        options["features"] = args.features
        clip, data = open_shared(args, NumberedControlData, model, **options)
        data.prepare([cell for bench in benches(args, suite, data) for cell in bench.cells])
        encoding = looking_up(clip, data.table)
    else:
        clip, data = open_shared(args, ControlData, model, **options)
        encoding = clip.fast("inductor" if args.compile else None, cuda_graphs=True)
    with encoding:
        done = [cell for bench in benches(args, suite, data) for cell in finished_cells(bench)]
    if not done:
        raise SystemExit(f"no cell was finished; {args.out} says why")
    write_cells(args, done)
    write_table(args.out, tabulate(suite, done))
    if suite.kind == "pareto":
        write_pareto(args.out, done)


def data_options(args: argparse.Namespace) -> dict[str, Any]:
    """What a command line says about the images and classes of `ControlData`."""
    names = ("control_images", "images_per_class", "part_numbers")
    return {name: getattr(args, name) for name in names}


def open_shared(
    args: argparse.Namespace,
    data_class: type[Data],
    model: SharedModel | None = None,
    **options: Any,
) -> tuple[Clip, Data]:
    """The model of `--shared`, and the data beside it for all cells."""
    model = model or SharedModel(load(args.shared / "models" / NAME, args.device))
    clip = model()
    clip.bf16 = not args.fp32
    root = args.shared / "data"
    cache, reference = args.out.parent / "cache", str(root / "coco-val-200")
    return clip, data_class(model, root, cache, reference, **options)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("suite")
    options.add_argument("--shared", type=Path, default=Path("../shared"))
    options.add_argument("--datasets", default="gtsrb", help="gtsrb:5,cub:3 for 5 and 3 epochs")
    options.add_argument("--methods", default="")
    options.add_argument("--epochs", type=int)
    options.add_argument("--tasks", type=int)
    options.add_argument("--lr", default="")
    options.add_argument("--seeds", default="0", help="as in 1,2,3")
    options.add_argument("--device", default="cpu")
    options.add_argument("--compile", action="store_true")
    options.add_argument("--fp32", action="store_true")
    options.add_argument("--each-task", action="store_true", help="evaluate after every task")
    options.add_argument("--control-images", type=int, default=5, help="control images per class")
    options.add_argument("--images-per-class", type=int, help="learn from few images")
    options.add_argument("--part-numbers", action="store_true", help="classes called A-1042, …")
    options.add_argument("--features", type=Path, help="encode each image once")
    options.add_argument("--stored", type=Path, nargs="+", default=[], help="table.json of others")
    options.add_argument("--out", type=Path, default=Path("runs/real"))
    return options.parse_args(argv)


def benches(args: argparse.Namespace, suite: Suite, data: BenchData) -> list[Bench]:
    """One for each row and data set: a data set may have epochs of its own."""
    options = Options(
        seeds=tuple(int(seed) for seed in args.seeds.split(",")),
        tasks=args.tasks,
        precision=None if args.fp32 else "bf16",
        compile=args.compile,
        lr=tuple(float(rate) for rate in args.lr.split(",") if rate),
        machine={"reuse_frozen": False} if args.features else {},  # it has no blocks that run
    )
    result: list[Bench] = []
    trained: Trained = {}
    stored = StoredCells(args.stored)
    for row in suite.rows:
        for text in args.datasets.split(","):
            dataset, _, epochs = text.partition(":")
            own = replace(options, datasets=(dataset,), epochs=int(epochs or 0) or args.epochs)
            if args.images_per_class:
                own = replace(own, **few_images(dataset, args))
            of_row = suite.model_copy(update={"rows": (row,)})
            flags = {"evaluate_each_task": args.each_task, "trained": trained, "stored": stored}
            result.append(SharedTrainingBench(of_row, data, NAME, args.out, own, **flags))
    return result


def part_numbers(count: int) -> list[str]:
    """Names that are no words, such as A-1042."""
    drawn = np.random.default_rng(0).choice(np.arange(1000, 10_000), count, replace=False)
    return [f"A-{number}" for number in drawn]


def few_images(dataset: str, args: argparse.Namespace) -> dict[str, int]:
    """Batches, epochs and a replay buffer as `retouch learn` chooses them for so few images."""
    classes = len(find_benchmark(dataset).facts.classes)
    batch, epochs = batch_and_epochs(classes // (args.tasks or 10) * args.images_per_class)
    stored = buffer_size(BalancedReplay().size, classes, classes * args.images_per_class)
    return {"batch": batch, "epochs": epochs, "replay": stored}


def finished_cells(bench: Bench) -> list[CellResult]:
    """Run the cells that are not finished yet. One that fails does not stop the others."""
    with suppress(Incomplete):
        bench.run(listener=PlainView(Console()))
    return [cell for cell in map(bench.cell_runner.finished, bench.cells) if cell]


def write_cells(args: argparse.Namespace, done: list[CellResult]) -> None:
    """Every cell as a line of `cells.jsonl`, for whoever wants to compare others with it."""
    options = ("images_per_class", "part_numbers")
    chosen = {name: value for name in options if (value := getattr(args, name))}
    lines = []
    for cell, results in ((one.cell, one.results) for one in done):
        names = {"name": cell.row.partition("@")[0], "method": cell.method, "change": cell.change}
        ran = {"lr": cell.settings["lr"], "dataset": cell.dataset, "seed": cell.seed}
        settings = {name: cell.settings[name] for name in ("batch", "epochs")}
        metrics = {name: round(value, 3) for name, value in results.metrics().items()}
        taken = {"metrics": metrics, "steps": results.steps}
        lines.append(json.dumps({**names, **ran, **chosen, **settings, **taken}) + "\n")
    (args.out / "cells.jsonl").write_text("".join(lines))


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


if __name__ == "__main__":
    main()
