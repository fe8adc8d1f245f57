"""How fast is it? Each row times retouch and a straightforward implementation in the same run.

    python benchmarks/speed.py --device cuda --data-root ../shared/data   # CLIP ViT-B/16, 224 px
    python benchmarks/speed.py                                   # the built-in model on a CPU
    python benchmarks/speed.py --device cuda --shape h14 --rows step,memory

A whole run needs photographs (`--data-root`, see `whole_run.py`); the rest uses random images.

Weights are random: speed does not depend on them. Prints a table and writes JSON (`--out`).
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import whole_run
from shapes import SHAPES, model_of
from straightforward import DenseMasked
from torch.utils.flop_counter import FlopCounterMode

from retouch.clip.frozen.reuse import reuse_frozen
from retouch.clip.hf.model import HuggingFaceClip
from retouch.clip.text.zero_shot import classifier
from retouch.data import Stream, in_memory
from retouch.evaluate.image_features import image_features
from retouch.methods import Method, Settings, recipe
from retouch.methods.after_task.text_first import TextFirst
from retouch.methods.class_statistics import ClassStatistics
from retouch.train.environment import deterministic_algorithms
from retouch.train.loop import backward, task_context


@dataclass
class Row:
    """One measurement: ours beside the straightforward implementation, or beside a goal."""

    name: str
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


class Workload:
    """A model of a shape, and images of 100 classes for it."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.device = torch.device(args.device)
        self.cuda = self.device.type == "cuda"
        self.stream = self.images(2 * max(1, args.batch // 100 + 1))
        self.settings = Settings(
            batch=args.batch,
            lr=7.5e-6,
            precision="fp32" if args.fp32 else "bf16",
            compile=args.compile,
        )

    def images(self, per_class: int) -> Stream:
        """Two tasks of 50 classes with this many images per class."""
        size = SHAPES[self.args.shape]["size"]
        labels = np.repeat(np.arange(100), per_class)
        arrays = np.random.default_rng(0).integers(0, 256, (len(labels), size, size, 3), np.uint8)
        names = [f"{a} {b}" for a in WORDS for b in WORDS]
        images = in_memory("noise", names, labels, arrays)
        return Stream.split(images, images, tasks=2)

    def clip(self) -> HuggingFaceClip:
        """A fresh model."""
        return model_of(self.args.shape, self.device)

    def synchronize(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def time(
        self,
        run: Callable[[], Any],
        repeats: int | None = None,
        steps: int = 1,
        warmups: int = 5,
    ) -> float:
        """Milliseconds per call: the median of several measurements after a warm-up.

        Each measurement times several steps in a row, as in training, where the next step is
        launched before the GPU has finished this one.
        """
        for _ in range(warmups):  # compiles, then captures
            run()
        measured = []
        for _ in range(repeats or self.args.times):
            self.synchronize()
            started = time.perf_counter()
            for _ in range(steps):
                run()
            self.synchronize()
            measured.append(1e3 * (time.perf_counter() - started) / steps)
        return median(measured)

    def reset_peak_memory(self) -> None:
        if self.cuda:
            torch._dynamo.reset()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    @property
    def peak(self) -> float:
        """The peak of allocated GPU memory in GiB, CUDA graphs included."""
        return torch.cuda.max_memory_allocated() / 2**30 if self.cuda else 0.0


TIMED_STEPS = 4
WORDS = ["red", "green", "blue", "dark", "small", "round", "open", "wild", "old", "tiny"]


def our_step(
    workload: Workload, method: Method, micro_batch: int | None = None, reuse: bool = False
) -> dict[str, float]:
    """Milliseconds, GiB and bytes of optimizer state of a step with replayed images.

    With `reuse`, the activations of frozen visual blocks are known, as from the second epoch on.
    """
    clip, stream = workload.clip(), workload.stream
    settings = workload.settings.model_copy(update={"micro_batch": micro_batch})
    clip.bf16 = settings.precision == "bf16"
    workload.reset_peak_memory()
    kept = reuse_frozen(clip, method.update.trained_parameters(clip) if reuse else None)
    fast = clip.fast("inductor" if settings.compile else None)
    with deterministic_algorithms(workload.device), kept, fast:
        assert (clip.frozen is not None) == reuse
        context = task_context(clip, stream, stream.tasks[0], method, settings)
        positions = np.arange(2 * settings.batch)
        with method.update.begin(context) as update:
            batch = context.load(positions, settings.batch)

            def step() -> None:
                backward(context, batch, method.regularizer)
                update.step(1.0)

            milliseconds = workload.time(step, steps=TIMED_STEPS)
            assert update.optimizer is not None
            state = update.optimizer.state_dict()["state"].values()
            tensors = [tensor for entry in state for tensor in entry.values() if tensor.ndim]
            return {
                "ms": milliseconds,
                "trainable": update.num_trainable,
                "peak": workload.peak,
                "state": sum(tensor.numel() * tensor.element_size() for tensor in tensors),
            }


def text_step(workload: Workload, captured: bool) -> float:
    """Milliseconds of one of the steps that teach the text tower alone, as `text-first` does.

    Args:
        workload: The model and its images.
        captured: Whether a step is replayed as a CUDA graph, as always on a GPU; if not, its
            kernels, compiled all the same, are launched one by one.
    """
    clip, stream, settings = workload.clip(), workload.stream, workload.settings
    clip.bf16 = settings.precision == "bf16"
    workload.reset_peak_memory()
    method = recipe("text-first")
    teacher, statistics = method.after_task, ClassStatistics()
    assert isinstance(teacher, TextFirst)
    fast = clip.fast("inductor" if settings.compile else None, cuda_graphs=True)
    with deterministic_algorithms(workload.device), fast:
        if not captured:
            clip._recorder = None
        context = task_context(clip, stream, stream.tasks[1], method, settings)
        teacher.start(clip, settings, None)
        with teacher.prepared(context):  # compiles
            assert teacher._before is not None
            statistics.add(teacher._before, context.task_labels)
            times = 3 if workload.cuda else 1
            teach = partial(teacher._teach, context, statistics, 0)
            return workload.time(teach, times, warmups=1) / teacher.steps


def flops_of(workload: Workload, method: Method) -> float:
    """Floating-point operations of one step, not compiled."""
    clip, stream, settings = workload.clip(), workload.stream, workload.settings
    context = task_context(clip, stream, stream.tasks[0], method, settings)
    with method.update.begin(context):
        batch = context.load(np.arange(2 * settings.batch), settings.batch)
        with FlopCounterMode(display=False) as counter:
            backward(context, batch, method.regularizer)
    return float(counter.get_total_flops())


def peak_flops(workload: Workload) -> float:
    """What a large matrix product reaches on this device, in the requested precision."""
    size = 8192 if workload.cuda else 1024
    dtype = torch.float32 if workload.args.fp32 else torch.bfloat16
    a, b = (torch.randn(size, size, device=workload.device, dtype=dtype) for _ in range(2))
    return 2 * size**3 / (workload.time(lambda: a @ b) / 1e3)


def straightforward_step(workload: Workload) -> dict[str, float]:
    workload.reset_peak_memory()
    clip, stream, settings = workload.clip(), workload.stream, workload.settings
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    dense = DenseMasked(clip, settings.lr)
    context = task_context(clip, stream, stream.tasks[0], recipe("spu"), settings)
    dense.select(recipe("random").update.select(context))  # type: ignore[attr-defined]
    positions = np.arange(2 * settings.batch)
    pixels = torch.from_numpy(stream.train.read(positions, clip.preprocess)).to(workload.device)
    prompts = [f"a photo of {stream.train.classes[stream.train.labels[i]]}" for i in positions]
    dense.model.requires_grad_(True)

    def step() -> None:
        dense.step(pixels, prompts, settings.batch)

    measured = {"ms": workload.time(step, 3, TIMED_STEPS), "peak": workload.peak}
    torch.set_float32_matmul_precision(before)
    return measured


def measure_rows(workload: Workload, names: set[str]) -> list[Row]:
    rows: list[Row] = []

    def add(row: Row) -> None:
        rows.append(row)
        sys.stderr.write(f"{row.name}: {row.ours:.4g} {row.unit}\n")

    random = {"update.score": "random"}  # the same step, without computing scores first
    if "step" in names:
        plain = straightforward_step(workload)
        spu = our_step(workload, recipe("spu", random))
        floor = 1e3 * flops_of(workload, recipe("spu", random)) / peak_flops(workload)
        baseline = {"other": plain["ms"], "other_memory": plain["peak"]}
        add(Row("a step of spu", spu["ms"], "ms", floor=floor, memory=spu["peak"], **baseline))
        er = our_step(workload, recipe("er"))
        add(Row("the same against er", spu["ms"], "ms", er["ms"], None, spu["peak"], er["peak"]))
        neuron = our_step(workload, recipe("spu", {**random, "update.unit": "neuron"}))
        add(Row("by neuron, against spu", neuron["ms"], "ms", spu["ms"], None, neuron["peak"]))
        add(Row("optimizer state", spu["state"] / 1e6, "MB", er["state"] / 1e6))
    if "prefix" in names:
        for blocks, part in ((0.5, "half"), (0.25, "quarter")):
            method = recipe("spu+", {**random, "update.blocks": blocks})
            kept, whole = (our_step(workload, method, reuse=reuse) for reuse in (True, False))
            memory = {"memory": kept["peak"], "other_memory": whole["peak"]}
            name = f"a step of spu+ in the upper {part}, against running frozen blocks"
            add(Row(name, kept["ms"], "ms", whole["ms"], goal="≥ 1.67 ×", **memory))
    if "text" in names:
        step, launched = (text_step(workload, captured) for captured in (True, False))
        name = "a step of the text tower, against launching its kernels"
        add(Row(name, step, "ms", launched))
    if "scoring" in names:
        step = our_step(workload, recipe("spu", random))["ms"]
        for images in (200, 600):  # a task of CUB-200 has 600, those of other data sets more
            add(scoring(workload, images, step))
    if "evaluation" in names:
        add(image_evaluation(workload))
        add(text_evaluation(workload))
    if "run" in names and workload.args.data_root:
        seconds = whole_run.measure(workload.args)
        first, again, other = (seconds[run] for run in ("first", "again", "straightforward"))
        add(Row("a whole run on CUB-200", first, "s", other, goal="≥ 8 ×"))
        add(Row("the same, once compiled and decoded", again, "s", other))
        share = 100 * seconds["forward and backward, again"] / again
        add(Row("of that, in forward and backward", share, "%", goal="≥ 85 %"))
    if "memory" in names:
        size = workload.args.micro_batch
        small = our_step(workload, recipe("spu", random), size)
        add(Row(f"micro-batches of {size}", small["ms"], "ms", memory=small["peak"]))
    return rows


def scoring(workload: Workload, images: int, step: float) -> Row:
    """The share of selection in selecting for a task of `images` images and training ten epochs."""
    clip, settings = workload.clip(), workload.settings
    clip.bf16 = settings.precision == "bf16"
    stream = workload.images(images // 50)
    method = recipe("spu")
    fast = clip.fast("inductor" if settings.compile else None)
    with deterministic_algorithms(workload.device), fast:
        context = task_context(clip, stream, stream.tasks[0], method, settings)
        score = workload.time(lambda: method.update.select(context), 3)  # type: ignore[attr-defined]
    train = step * 10 * images / settings.batch
    share = 100 * score / (score + train)
    return Row(f"scoring, of the training of {images} images", share, "%", goal="≤ 3 %")


def image_evaluation(workload: Workload) -> Row:
    """Encoding images as in an evaluation, against the bare tower, batch after batch."""
    clip, images = workload.clip(), workload.stream.test
    clip.bf16 = workload.settings.precision == "bf16"
    rounds = 16 if workload.cuda else 1
    positions = np.tile(np.arange(256) % len(images), rounds)
    with clip.fast("inductor" if workload.settings.compile else None), torch.no_grad():
        ours = workload.time(lambda: image_features(clip, images, positions), 5)
        pixels = torch.from_numpy(images.read(positions[:256], clip.preprocess))
        batch = clip.preprocess.normalize(pixels.to(workload.device))

        def encode_only() -> None:
            with clip.precision():
                for _ in range(rounds):
                    clip.encode_images(batch)

        forward = workload.time(encode_only, 5)
    share = 100 * forward / ours
    return Row("evaluation, of a bare forward pass", share, "%", goal="≥ 70 %")


def text_evaluation(workload: Workload) -> Row:
    """A classifier of 1,000 classes with 80 templates (fewer on a CPU)."""
    clip = workload.clip()
    clip.bf16 = workload.settings.precision == "bf16"
    num_classes, num_templates = (1000, 80) if workload.cuda else (100, 4)
    names = [f"{a} {b} {c}" for a in WORDS for b in WORDS for c in WORDS][:num_classes]
    templates = [f"a photo of the {{}}, {n}" for n in range(num_templates)]  # 11 to 20 tokens
    with clip.fast("inductor" if workload.settings.compile else None):
        milliseconds = workload.time(lambda: classifier(clip, names, templates), 3)
    name = f"prompts of {num_classes} × {num_templates}"
    return Row(name, milliseconds / 1e3, "s", goal="≤ 3 s for 1000 × 80")


def table(rows: list[Row]) -> str:
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
    for row in rows:
        cells = [
            row.name,
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
    options.add_argument("--batch", type=int, help="new images per step; as many are replayed")
    options.add_argument("--micro-batch", type=int)
    options.add_argument("--rows", default="step,prefix,text,scoring,evaluation,memory,run")
    whole_run.add_options(options)
    options.add_argument("--times", type=int, default=10)
    options.add_argument("--fp32", action="store_true")
    options.add_argument("--no-compile", dest="compile", action="store_false")
    options.add_argument("--out", type=Path)
    args = options.parse_args()
    cuda = args.device.startswith("cuda")
    args.shape = args.shape or ("b16" if cuda else "builtin")
    args.batch = args.batch or (128 if cuda else 32)
    args.compile, args.fp32 = args.compile and cuda, args.fp32 or not cuda  # retouch's defaults
    args.micro_batch = args.micro_batch or (32 if cuda else 16)
    rows = measure_rows(Workload(args), set(args.rows.split(",")))
    sys.stdout.write(table(rows) + "\n")
    if args.out:
        arguments = {key: str(value) for key, value in vars(args).items()}
        measured = [{**asdict(row), "ratio": row.ratio} for row in rows]
        args.out.write_text(json.dumps({"arguments": arguments, "rows": measured}, indent=1))


if __name__ == "__main__":
    main()
