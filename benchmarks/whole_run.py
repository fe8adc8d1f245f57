"""A whole run, from files to numbers: ours, then the straightforward way, in one process.

    python benchmarks/whole_run.py --data-root ../shared/data --device cuda --epochs 2
    python benchmarks/whole_run.py --data-root ../shared/data --classes 4 --tasks 2   # processor

Both score, select, train with replay and judge after each task, on real photographs and with a
control set; the model is a CLIP of random weights (`speed.py`). Ours decodes every image once, the
other way each time it is needed, with as many workers as there are cores. Where ours spends its
time is measured with events on the device, in the same run; how long the loop stood still for
images that other threads load, and for what they write, beside it (the device may have had work
meanwhile); and between which passes the device was outside the towers, on stderr.
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
from straightforward import StraightRun

from retouch.clip import encode, model
from retouch.clip.model import Clip
from retouch.data import Images, Stream, cached, prefetch, read_data
from retouch.methods import Settings, recipe
from retouch.train import run_on_disk, teach


class Clock:
    """How long the device was inside some functions, without waiting for it in between."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self._marks: list[tuple[Any, Any, str]] = []
        self._inside = False

    def mark(self) -> Any:
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return function(*args, **kwargs)
            self._inside, began = True, self.mark()
            try:
                return function(*args, **kwargs)
            finally:
                self._inside = False
                self._marks.append((began, self.mark(), _who_asks()))

        return timed

    @property
    def seconds(self) -> float:
        return sum(self._span(began, end) for began, end, _ in self._marks)

    def between(self) -> Counter[str]:
        """How long it was outside in between, by who asked before and after."""
        found: Counter[str] = Counter()
        for (_, end, before), (began, _, after) in pairwise(self._marks):
            found[f"{before} → {after}"] += self._span(end, began)
        return found

    def _span(self, began: Any, end: Any) -> float:
        if not self.cuda:
            return end - began
        end.synchronize()
        return began.elapsed_time(end) / 1e3


def _who_asks() -> str:
    """The innermost function of the package, but for the towers' own."""
    frame = sys._getframe(2)
    while frame.f_back and not _tells(frame):
        frame = frame.f_back
    return f"{frame.f_globals['__name__'].rpartition('.')[2]}.{frame.f_code.co_name}"


def _tells(frame: FrameType) -> bool:
    module, function = frame.f_globals["__name__"], frame.f_code.co_name
    towers = module in (model.__name__, encode.__name__)
    return module.startswith("retouch.") and not towers and not function.startswith("<")


@contextmanager
def in_the_towers(clock: Clock) -> Iterator[None]:
    """How long the device is there, in either direction."""
    watched = [(Clip, "_run"), (torch.Tensor, "backward"), (torch.autograd, "grad")]
    with ExitStack() as stack:
        for owner, name in watched:
            own = clock.around(getattr(owner, name))
            stack.enter_context(mock.patch.object(owner, name, own))
        yield


@contextmanager
def waiting(told: dict[str, float]) -> Iterator[None]:
    """How long the loop stands still for other threads, by what they do."""
    result = Future.result

    def timed(self: Future[Any], timeout: float | None = None) -> Any:
        asks, began = sys._getframe(1).f_globals["__name__"], time.perf_counter()
        try:
            return result(self, timeout)
        finally:
            what = {prefetch.__name__: "images", run_on_disk.__name__: "files"}.get(asks)
            if what and threading.current_thread() is threading.main_thread():
                told[what] += time.perf_counter() - began

    with mock.patch.object(Future, "result", timed):
        yield


def control_images(root: Path, templates: int) -> Images:
    found = read_data("imagenet", root).evaluation_images()
    return replace(found, templates=tuple(found.templates)[:templates])


def ours(asked: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Twice: the second finds decoded images and compiled programs of the first."""
    device = torch.device(asked.device)
    told: dict[str, float] = {}
    for which in ("first", "again"):
        clip = model_of(asked.shape, device)
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        train, test, control = (
            cached(images, clip.preprocess, folder / "cache") for images in pictures(asked)
        )
        told[f"decoding, {which}"] = time.perf_counter() - began
        towers, stood_still = Clock(device), dict.fromkeys(("images", "files"), 0.0)
        with in_the_towers(towers), waiting(stood_still):
            teach(
                clip,
                Stream.split(train, test, tasks=asked.tasks),
                recipe("spu"),
                settings=settings_of(asked),
                control=control,
                out=folder / which,
                store_images=False,
                per_class=False,
            )
        told[which] = time.perf_counter() - began
        told[f"forward and backward, {which}"] = towers.seconds
        told |= {f"waiting for {what}, {which}": took for what, took in stood_still.items()}
        for what, seconds in towers.between().most_common(8):
            sys.stderr.write(f"{which}, outside the towers: {seconds:.2f} s, {what}\n")
    return told


def straightforward(asked: argparse.Namespace) -> dict[str, float]:
    device = torch.device(asked.device)
    clip = model_of(asked.shape, device)
    torch.set_float32_matmul_precision("high")
    began = time.perf_counter()
    train, test, control = pictures(asked)
    stream = Stream.split(train, test, tasks=asked.tasks)
    StraightRun(clip, stream, control, settings_of(asked), asked.workers).learn()
    return {"straightforward": time.perf_counter() - began}


def pictures(asked: argparse.Namespace) -> tuple[Images, Images, Images]:
    train, test = read_data("cub", asked.data_root).train_and_test()
    control = control_images(asked.data_root, asked.templates)
    if asked.classes:
        train, test = (some_classes(images, range(asked.classes)) for images in (train, test))
        control = some_classes(control, range(asked.classes))
    return train, test, control


def some_classes(images: Images, classes: range) -> Images:
    some = images.subset(images.of_classes(classes))
    return replace(some, classes=[images.classes[c] for c in classes])


def settings_of(asked: argparse.Namespace) -> Settings:
    cuda = asked.device != "cpu"
    return Settings(
        batch=asked.batch,
        epochs=asked.epochs,
        lr=7.5e-6,
        precision="bf16" if cuda else "fp32",
        compile=cuda,
    )


def measure(asked: argparse.Namespace) -> dict[str, float]:
    """Seconds of each."""
    told: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        if asked.only != "straightforward":
            told |= ours(asked, Path(folder))
            sys.stderr.write(f"{told}\n")
    if asked.only != "ours":
        told |= straightforward(asked)
    return told


def add_options(options: argparse.ArgumentParser) -> None:
    options.add_argument("--data-root", type=Path)
    options.add_argument("--classes", type=int, help="only the first of them")
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
    asked = options.parse_args()
    asked.shape = asked.shape or ("b16" if asked.device != "cpu" else "builtin")
    told = measure(asked)
    for name, seconds in told.items():
        sys.stdout.write(f"{name}: {seconds:.1f} s\n")
    if not asked.only:
        for which in ("first", "again"):
            share = told[f"forward and backward, {which}"] / told[which]
            ratio = told["straightforward"] / told[which]
            sys.stdout.write(f"ours, {which}: {ratio:.1f} × faster, {share:.0%} in the towers\n")
    if asked.out:
        asked.out.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
