"""A whole run, from image files to results: ours, then the straightforward one, in one process.

    python benchmarks/whole_run.py --data-root ../shared/data --device cuda --epochs 2
    python benchmarks/whole_run.py --data-root ../shared/data --classes 4 --tasks 2   # a CPU

Both score, select, train with replay and evaluate after each task, on real photographs and with a
control set; the model is a CLIP of random weights (`speed.py`). Ours decodes every image once; the
other decodes it each time it is needed, with one worker per core. Where our time goes is measured
with CUDA events in the same run. So is how long the loop waits for images that other threads load
and for files that they write (the GPU may be busy meanwhile). Between which passes the GPU was
outside the towers is printed on stderr.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import wraps
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import torch
from shapes import SHAPES, model_of
from straightforward import StraightforwardRun

from retouch.clip import encode, model
from retouch.clip.model import Clip
from retouch.data import Images, Stream, cached, read_data
from retouch.data.loading import prefetch
from retouch.methods import Settings, recipe
from retouch.train import teach
from retouch.train.run_folder import record_on_disk as run_on_disk


class DeviceTimer:
    """Measures the device time of some functions without synchronizing in between."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self._intervals: list[tuple[Any, Any, str]] = []
        self._inside = False

    def now(self) -> Any:
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return function(*args, **kwargs)
            self._inside, start = True, self.now()
            try:
                return function(*args, **kwargs)
            finally:
                self._inside = False
                self._intervals.append((start, self.now(), _caller()))

        return timed

    @property
    def seconds(self) -> float:
        return sum(self._span(start, end) for start, end, _ in self._intervals)

    def between(self) -> Counter[str]:
        """Seconds between the functions, by their callers before and after."""
        gaps: Counter[str] = Counter()
        for (_, end, before), (start, _, after) in pairwise(self._intervals):
            gaps[f"{before} → {after}"] += self._span(end, start)
        return gaps

    def _span(self, start: Any, end: Any) -> float:
        if not self.cuda:
            return end - start
        end.synchronize()
        return start.elapsed_time(end) / 1e3


def _caller() -> str:
    """The innermost function of the package outside the towers."""
    frame = sys._getframe(2)
    while frame.f_back and not _is_outside_towers(frame):
        frame = frame.f_back
    return f"{frame.f_globals['__name__'].rpartition('.')[2]}.{frame.f_code.co_name}"


def _is_outside_towers(frame: FrameType) -> bool:
    module, function = frame.f_globals["__name__"], frame.f_code.co_name
    towers = module in (model.__name__, encode.__name__)
    return module.startswith("retouch.") and not towers and not function.startswith("<")


@contextmanager
def time_towers(timer: DeviceTimer) -> Iterator[None]:
    """Measure the forward and backward passes of the towers."""
    functions = [(Clip, "_run"), (torch.Tensor, "backward"), (torch.autograd, "grad")]
    with ExitStack() as stack:
        for owner, name in functions:
            timed = timer.wrap(getattr(owner, name))
            stack.enter_context(mock.patch.object(owner, name, timed))
        yield


@contextmanager
def time_waiting(seconds: dict[str, float]) -> Iterator[None]:
    """Measure how long the loop waits for other threads, by what they do."""
    result = Future.result

    def timed(self: Future[Any], timeout: float | None = None) -> Any:
        caller, start = sys._getframe(1).f_globals["__name__"], time.perf_counter()
        try:
            return result(self, timeout)
        finally:
            what = {prefetch.__name__: "images", run_on_disk.__name__: "files"}.get(caller)
            if what and threading.current_thread() is threading.main_thread():
                seconds[what] += time.perf_counter() - start

    with mock.patch.object(Future, "result", timed):
        yield


def control_images(root: Path, templates: int) -> Images:
    images = read_data("imagenet", root).evaluation_images()
    return replace(images, templates=tuple(images.templates)[:templates])


def ours(args: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Two runs: the second reuses the decoded images and the compiled code of the first."""
    device = torch.device(args.device)
    seconds: dict[str, float] = {}
    for which in ("first", "again"):
        clip = model_of(args.shape, device)
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        train, test, control = (
            cached(images, clip.preprocess, folder / "cache") for images in read_images(args)
        )
        seconds[f"decoding, {which}"] = time.perf_counter() - start
        towers, waiting = DeviceTimer(device), dict.fromkeys(("images", "files"), 0.0)
        with time_towers(towers), time_waiting(waiting):
            teach(
                clip,
                Stream.split(train, test, tasks=args.tasks),
                recipe("spu"),
                settings=settings_of(args),
                control=control,
                out=folder / which,
                store_images=False,
                per_class=False,
            )
        seconds[which] = time.perf_counter() - start
        seconds[f"forward and backward, {which}"] = towers.seconds
        seconds |= {f"waiting for {what}, {which}": spent for what, spent in waiting.items()}
        for what, gap in towers.between().most_common(8):
            sys.stderr.write(f"{which}, outside the towers: {gap:.2f} s, {what}\n")
    return seconds


def straightforward(args: argparse.Namespace) -> dict[str, float]:
    device = torch.device(args.device)
    clip = model_of(args.shape, device)
    torch.set_float32_matmul_precision("high")
    start = time.perf_counter()
    train, test, control = read_images(args)
    stream = Stream.split(train, test, tasks=args.tasks)
    StraightforwardRun(clip, stream, control, settings_of(args), args.workers).learn()
    return {"straightforward": time.perf_counter() - start}


def read_images(args: argparse.Namespace) -> tuple[Images, Images, Images]:
    train, test = read_data("cub", args.data_root).train_and_test()
    control = control_images(args.data_root, args.templates)
    if args.classes:
        train, test = (some_classes(images, range(args.classes)) for images in (train, test))
        control = some_classes(control, range(args.classes))
    return train, test, control


def some_classes(images: Images, classes: range) -> Images:
    subset = images.subset(images.of_classes(classes))
    return replace(subset, classes=[images.classes[c] for c in classes])


def settings_of(args: argparse.Namespace) -> Settings:
    cuda = args.device != "cpu"
    return Settings(
        batch=args.batch,
        epochs=args.epochs,
        lr=7.5e-6,
        precision="bf16" if cuda else "fp32",
        compile=cuda,
        control_part="all",
    )


def measure(args: argparse.Namespace) -> dict[str, float]:
    """Seconds of each part."""
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        if args.only != "straightforward":
            seconds |= ours(args, Path(folder))
            sys.stderr.write(f"{seconds}\n")
    if args.only != "ours":
        seconds |= straightforward(args)
    return seconds


def add_options(options: argparse.ArgumentParser) -> None:
    options.add_argument("--data-root", type=Path)
    options.add_argument("--classes", type=int, help="use only the first CLASSES classes")
    options.add_argument("--tasks", type=int, default=10)
    options.add_argument("--epochs", type=int, default=2)
    options.add_argument("--templates", type=int, default=80)
    options.add_argument("--workers", type=int, default=os.cpu_count())
    options.add_argument("--only", choices=("ours", "straightforward"))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--device", default="cpu")
    options.add_argument("--shape", choices=SHAPES)
    options.add_argument("--batch", type=int, default=128)
    options.add_argument("--out", type=Path)
    add_options(options)
    args = options.parse_args()
    args.shape = args.shape or ("b16" if args.device != "cpu" else "builtin")
    seconds = measure(args)
    for name, value in seconds.items():
        sys.stdout.write(f"{name}: {value:.1f} s\n")
    if not args.only:
        for which in ("first", "again"):
            share = seconds[f"forward and backward, {which}"] / seconds[which]
            ratio = seconds["straightforward"] / seconds[which]
            sys.stdout.write(f"ours, {which}: {ratio:.1f} × faster, {share:.0%} in the towers\n")
    if args.out:
        args.out.write_text(json.dumps(seconds, indent=1))


if __name__ == "__main__":
    main()
