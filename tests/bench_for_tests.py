"""Small benches, for the tests of bench: a tiny model on tiny images."""

from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path

import torch
import transformers
from fake_results import fake_results
from model_copies import copy_module
from recipes_for_tests import reference
from tiny import images, tiny_config, tiny_tokenizer

from retouch.bench import Bench, CellResult, load_suite
from retouch.bench.cell import Cell
from retouch.bench.cells import Options
from retouch.bench.datasets import BenchData
from retouch.bench.suite import SuiteRow
from retouch.clip.hf.model import HuggingFaceClip
from retouch.clip.preprocess import Preprocess

SMALL = Options(tasks=2, epochs=1, replay=10, lr=(1e-3,))
PAPER = ("aircraft", "birdsnap", "cars", "cifar100", "cub", "gtsrb")


def tiny_model(blocks: int = 2) -> HuggingFaceClip:
    """With this many blocks in the visual tower."""
    model = copy_module(_prototype(blocks))
    return HuggingFaceClip(model, tiny_tokenizer(), Preprocess(size=(16, 16)), "tiny")


@cache
def _prototype(blocks: int) -> transformers.CLIPModel:
    """Built once: every cell has a copy, which is made faster."""
    torch.manual_seed(0)
    config = tiny_config(context=16)
    config.vision_config.num_hidden_layers = blocks
    return transformers.CLIPModel(config)


def tiny_data(blocks: int = 2) -> BenchData:
    """What `builtin` stands for, in seconds: the tests are about running, not about learning."""
    data = BenchData(partial(tiny_model, blocks), reference="builtin", small=True)
    data._splits["builtin"] = images("train", 4, 6), images("test", 4, 2)
    data._controls["builtin"] = images("control", 4, 2)
    data.pairs = reference()
    return data


def tiny_bench(name: str, out: Path, methods: list[str] | None = None) -> Bench:
    suite = load_suite(name).only(methods)
    return Bench(suite, tiny_data(blocks_for(suite.rows)), "builtin", out, SMALL)


def blocks_for(rows: Iterable[SuiteRow]) -> int:
    """How deep the visual tower must be: DualPrompt has prompts in its fifth block."""
    return 5 if any(row.method == "dualprompt" for row in rows) else 2


def fake_done(
    row: str,
    lost: float,
    learned: float,
    *,
    dataset: str = "signs",
    seed: int = 0,
    method: str = "er",
) -> CellResult:
    """A cell of a pareto suite that was never run; `row` is such as `ER@0.001`."""
    moved = 0 if method == "frozen" else 27
    control = (90.0, 89.0, 88.0, 90.0 - lost)
    results = fake_results(method, (80, 70, learned), control, moved=moved)
    settings = {"lr": float(row.rpartition("@")[2])}
    cell = Cell(row, method, dataset, seed, "tiny", 3, "control", {}, settings)
    return CellResult(cell, results, all_images=True)
