"""How fast is it? Each row times ours and the straightforward way in the same run.

    python benchmarks/speed.py --device cuda --data-root ../shared/data   # CLIP ViT-B/16, 224 px
    python benchmarks/speed.py                                   # the built-in model, a processor
    python benchmarks/speed.py --device cuda --shape h14 --rows step,memory

A whole run needs photographs (`--data-root`, see `whole_run.py`); the rest makes its own.

Weights are random: speed does not depend on them. Prints a table and writes JSON (`--out`).
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import whole_run
from shapes import SHAPES, model_of
from straightforward import DenseMasked
from torch.utils.flop_counter import FlopCounterMode

from retouch.clip.hf import HuggingFaceClip
from retouch.clip.zero_shot import classifier
from retouch.data import Stream, in_memory
from retouch.evaluate.image_features import image_features
from retouch.methods import Method, Settings, recipe
from retouch.train.environment import deterministic_algorithms
from retouch.train.loop import backward, task_context


@dataclass
class Row:
    """What was measured: ours beside the straightforward way, or beside a goal."""

    what: str
    ours: float
    unit: str
    other: float | None = None
    floor: float | None = None
    memory: float | None = None
    other_memory: float | None = None
    goal: str = ""

    @property
    def ratio(self) -> float | None:
        return self.other / self.ours if self.other and self.ours else None


class Ground:
    """A model of a shape, and images of 100 classes for it."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked = asked
        self.device = torch.device(asked.device)
        self.cuda = self.device.type == "cuda"
        self.stream = self.images(2 * max(1, asked.batch // 100 + 1))
        self.settings = Settings(
            batch=asked.batch,
            lr=7.5e-6,
            precision="fp32" if asked.fp32 else "bf16",
            compile=asked.compile,
        )

    def images(self, each: int) -> Stream:
        """Two tasks of 50 classes, so many images of each."""
        size = SHAPES[self.asked.shape]["size"]
        labels = np.repeat(np.arange(100), each)
        arrays = np.random.default_rng(0).integers(0, 256, (len(labels), size, size, 3), np.uint8)
        names = [f"{a} {b}" for a in WORDS for b in WORDS]
        images = in_memory("noise", names, labels, arrays)
        return Stream.split(images, images, tasks=2)

    def clip(self) -> HuggingFaceClip:
        """A fresh model."""
        return model_of(self.asked.shape, self.device)

    def synchronize(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def time(self, run: Callable[[], Any], times: int | None = None, in_a_row: int = 1) -> float:
        """Milliseconds, the median of a few after some to warm up.

        Steps are timed some in a row, as they come in a training, where a GPU has the next one
        before it is done with this one.
        """
        for _ in range(5):  # compiled, then recorded
            run()
        found = []
        for _ in range(times or self.asked.times):
            self.synchronize()
            began = time.perf_counter()
            for _ in range(in_a_row):
                run()
            self.synchronize()
            found.append(1e3 * (time.perf_counter() - began) / in_a_row)
        return median(found)

    def forget(self) -> None:
        """Begin to look for the peak anew."""
        if self.cuda:
            torch._dynamo.reset()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    @property
    def peak(self) -> float:
        """GiB that were in use at most, what a recording holds included."""
        return torch.cuda.max_memory_allocated() / 2**30 if self.cuda else 0.0


IN_A_ROW = 4
WORDS = ["red", "green", "blue", "dark", "small", "round", "open", "wild", "old", "tiny"]


def our_step(ground: Ground, method: Method, micro_batch: int | None = None) -> dict[str, float]:
    """Milliseconds, GiB, FLOP and bytes of optimizer state of a step with as many old as new."""
    clip, stream = ground.clip(), ground.stream
    settings = ground.settings.model_copy(update={"micro_batch": micro_batch})
    clip.bf16 = settings.precision == "bf16"
    ground.forget()
    fast = clip.fast("inductor" if settings.compile else None)
    with deterministic_algorithms(ground.device), fast:
        context = task_context(clip, stream, stream.tasks[0], method, settings)
        positions = np.arange(2 * settings.batch)
        with method.update.begin(context) as update:
            batch = context.load(positions, settings.batch)

            def step() -> None:
                backward(context, batch, method.regularizer)
                update.step(1.0)

            ms = ground.time(step, in_a_row=IN_A_ROW)
            found = {"ms": ms, "trainable": update.num_trainable, "peak": ground.peak}
            assert update.optimizer is not None
            state = update.optimizer.state_dict()["state"].values()
            found["state"] = sum(
                t.numel() * t.element_size() for e in state for t in e.values() if t.ndim
            )
    return found


def flops_of(ground: Ground, method: Method) -> float:
    """Multiplications and additions of one step, not compiled."""
    clip, stream, settings = ground.clip(), ground.stream, ground.settings
    context = task_context(clip, stream, stream.tasks[0], method, settings)
    with method.update.begin(context):
        batch = context.load(np.arange(2 * settings.batch), settings.batch)
        with FlopCounterMode(display=False) as counter:
            backward(context, batch, method.regularizer)
    return float(counter.get_total_flops())


def peak_flops(ground: Ground) -> float:
    """What a large product reaches here, in the precision that is asked for."""
    size = 8192 if ground.cuda else 1024
    kind = torch.float32 if ground.asked.fp32 else torch.bfloat16
    a, b = (torch.randn(size, size, device=ground.device, dtype=kind) for _ in range(2))
    return 2 * size**3 / (ground.time(lambda: a @ b) / 1e3)


def straightforward_step(ground: Ground) -> dict[str, float]:
    ground.forget()
    clip, stream, settings = ground.clip(), ground.stream, ground.settings
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    dense = DenseMasked(clip, settings.lr)
    context = task_context(clip, stream, stream.tasks[0], recipe("spu"), settings)
    dense.select(recipe("random").update.select(context))  # type: ignore[attr-defined]
    positions = np.arange(2 * settings.batch)
    pixels = torch.from_numpy(stream.train.read(positions, clip.preprocess)).to(ground.device)
    prompts = [f"a photo of {stream.train.classes[stream.train.labels[i]]}" for i in positions]
    dense.model.requires_grad_(True)

    def step() -> None:
        dense.step(pixels, prompts, settings.batch)

    found = {"ms": ground.time(step, 3, IN_A_ROW), "peak": ground.peak}
    torch.set_float32_matmul_precision(before)
    return found


def rows(ground: Ground, wanted: set[str]) -> list[Row]:
    found: list[Row] = []

    def add(row: Row) -> None:
        found.append(row)
        sys.stderr.write(f"{row.what}: {row.ours:.4g} {row.unit}\n")

    random = {"update.score": "random"}  # the same work; nothing to compute before
    if "step" in wanted:
        plain = straightforward_step(ground)
        spu = our_step(ground, recipe("spu", random))
        floor = 1e3 * flops_of(ground, recipe("spu", random)) / peak_flops(ground)
        against = {"other": plain["ms"], "other_memory": plain["peak"]}
        add(Row("a step of spu", spu["ms"], "ms", floor=floor, memory=spu["peak"], **against))
        er = our_step(ground, recipe("er"))
        add(Row("the same against er", spu["ms"], "ms", er["ms"], None, spu["peak"], er["peak"]))
        neuron = our_step(ground, recipe("spu", {**random, "update.unit": "neuron"}))
        add(Row("by neuron, against spu", neuron["ms"], "ms", spu["ms"], None, neuron["peak"]))
        add(Row("optimizer state", spu["state"] / 1e6, "MB", er["state"] / 1e6))
    if "scoring" in wanted:
        step = our_step(ground, recipe("spu", random))["ms"]
        for images in (200, 600):  # CUB-200's tasks have 600, other data sets' more
            add(scoring(ground, images, step))
    if "judging" in wanted:
        add(judging(ground))
        add(texts(ground))
    if "run" in wanted and ground.asked.data_root:
        told = whole_run.measure(ground.asked)
        first, again, other = (told[n] for n in ("first", "again", "straightforward"))
        add(Row("a whole run on CUB-200", first, "s", other, goal="≥ 8 ×"))
        add(Row("the same, once compiled and decoded", again, "s", other))
        share = 100 * told["forward and backward, again"] / again
        add(Row("of that, in forward and backward", share, "%", goal="≥ 85 %"))
    if "memory" in wanted:
        small = our_step(ground, recipe("spu", random), ground.asked.micro_batch)
        add(
            Row(
                f"micro-batches of {ground.asked.micro_batch}",
                small["ms"],
                "ms",
                memory=small["peak"],
            )
        )
    return found


def scoring(ground: Ground, images: int, step: float) -> Row:
    """Selecting for a task of so many images, and training it for ten epochs of such steps."""
    clip, settings = ground.clip(), ground.settings
    clip.bf16 = settings.precision == "bf16"
    stream = ground.images(images // 50)
    method = recipe("spu")
    fast = clip.fast("inductor" if settings.compile else None)
    with deterministic_algorithms(ground.device), fast:
        context = task_context(clip, stream, stream.tasks[0], method, settings)
        score = ground.time(lambda: method.update.select(context), 3)  # type: ignore[attr-defined]
    train = step * 10 * images / settings.batch
    share = 100 * score / (score + train)
    return Row(f"scoring, of the training of {images} images", share, "%", goal="≤ 3 %")


def judging(ground: Ground) -> Row:
    """Images a second: as we judge, and the bare tower, batch after batch."""
    clip, images = ground.clip(), ground.stream.test
    clip.bf16 = ground.settings.precision == "bf16"
    rounds = 16 if ground.cuda else 1
    positions = np.tile(np.arange(256) % len(images), rounds)
    with clip.fast("inductor" if ground.settings.compile else None), torch.no_grad():
        ours = ground.time(lambda: image_features(clip, images, positions), 5)
        part = clip.preprocess.normalize(
            torch.from_numpy(images.read(positions[:256], clip.preprocess)).to(ground.device)
        )

        def bare() -> None:
            with clip.precision():
                for _ in range(rounds):
                    clip.encode_images(part)

        forward = ground.time(bare, 5)
    share = 100 * forward / ours
    return Row("judging, of a bare forward pass", share, "%", goal="≥ 70 %")


def texts(ground: Ground) -> Row:
    """A classifier of 1,000 classes with 80 templates (fewer on a processor)."""
    clip = ground.clip()
    clip.bf16 = ground.settings.precision == "bf16"
    classes, templates = (1000, 80) if ground.cuda else (100, 4)
    names = [f"{a} {b} {c}" for a in WORDS for b in WORDS for c in WORDS][:classes]
    said = [f"a photo of the {{}}, {n}" for n in range(templates)]  # 11 to 20 tokens
    with clip.fast("inductor" if ground.settings.compile else None):
        took = ground.time(lambda: classifier(clip, names, said), 3)
    return Row(f"prompts of {classes} × {templates}", took / 1e3, "s", goal="≤ 3 s for 1000 × 80")


def table(found: list[Row]) -> str:
    head = (
        "what",
        "ours",
        "straightforward",
        "ratio",
        "floor",
        "GiB",
        "GiB, straightforward",
        "goal",
    )
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in found:
        cells = [
            row.what,
            f"{row.ours:.4g} {row.unit}",
            "" if row.other is None else f"{row.other:.4g} {row.unit}",
            "" if row.ratio is None else f"{row.ratio:.2f} ×",
            "" if row.floor is None else f"{row.floor:.3g} {row.unit}",
            f"{row.memory:.1f}" if row.memory else "",
            f"{row.other_memory:.1f}" if row.other_memory else "",
            row.goal,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--device", default="cpu")
    options.add_argument("--shape", choices=SHAPES)
    options.add_argument("--batch", type=int, help="new images a step; as many old ones join")
    options.add_argument("--micro-batch", type=int)
    options.add_argument("--rows", default="step,scoring,judging,memory,run")
    whole_run.add_options(options)
    options.add_argument("--times", type=int, default=10)
    options.add_argument("--fp32", action="store_true")
    options.add_argument("--no-compile", dest="compile", action="store_false")
    options.add_argument("--out", type=Path)
    asked = options.parse_args()
    cuda = asked.device.startswith("cuda")
    asked.shape = asked.shape or ("b16" if cuda else "builtin")
    asked.batch = asked.batch or (128 if cuda else 32)
    asked.compile, asked.fp32 = asked.compile and cuda, asked.fp32 or not cuda  # as we choose it
    asked.micro_batch = asked.micro_batch or (32 if cuda else 16)
    found = rows(Ground(asked), set(asked.rows.split(",")))
    sys.stdout.write(table(found) + "\n")
    if asked.out:
        told = {"asked": {k: str(v) for k, v in vars(asked).items()}, "rows": []}
        told["rows"] = [{**asdict(row), "ratio": row.ratio} for row in found]  # type: ignore[assignment]
        asked.out.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
