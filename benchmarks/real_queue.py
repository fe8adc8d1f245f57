"""Commands of `real_tower.py`, one after the other in one process, on one model.

    python benchmarks/real_queue.py queue.txt --device cuda --out runs/queue \\
        --time retouch.methods.after_task.text_first:TextFirst._teach

A line of `queue.txt` holds the arguments of one command but `--shared`, `--device` and `--out`:

    benchmarks/real_frontier.yaml --compile --datasets cub:5 --methods spu+ --seeds 1,2,3
    benchmarks/real_few.yaml --datasets gtsrb,cub --seeds 1 --images-per-class 8  # not compiled

The model is loaded once, and neighbouring lines that both compile, or both do not, share what was
compiled and captured. Each has a folder of its own under `--out`, numbered by its line; the same
command goes on where it was stopped. A line that fails does not stop the others, and lines may be
added to the file as long as others are running. What is named by `--time` is timed, with the device
synchronized before and after each call.
"""

import argparse
import gc
import importlib
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import real_tower
import torch
from rich.console import Console
from shared_training import SharedModel


class Line(NamedTuple):
    """One command."""

    number: int
    argv: list[str]

    @property
    def compiles(self) -> bool:
        return "--compile" in self.argv


class Timer:
    """The calls of a function, and the seconds that they took since `take` was last called."""

    def __init__(self, name: str) -> None:
        self.name, self.calls, self.seconds = name, 0, 0.0
        module, _, path = name.partition(":")
        *owners, attribute = path.split(".")
        owner: Any = importlib.import_module(module)
        for each in owners:
            owner = getattr(owner, each)
        setattr(owner, attribute, self._timed(getattr(owner, attribute)))

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            _synchronize()
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                _synchronize()
                self.calls += 1
                self.seconds += time.perf_counter() - began

        return timed

    def take(self) -> str:
        """A line to print; the next begins from 0."""
        taken = f"{self.seconds:12.2f} s  {self.calls:6} calls  {self.name}"
        self.calls, self.seconds = 0, 0.0
        return taken


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("queue", type=Path)
    options.add_argument("--shared", type=Path, default=Path("../shared"))
    options.add_argument("--device", default="cpu")
    options.add_argument("--time", nargs="+", default=[], help="module:Class.method")
    options.add_argument("--out", type=Path, default=Path("runs/queue"))
    args = options.parse_args()
    timers = [Timer(name) for name in args.time]
    model = SharedModel(real_tower.load(args.shared / "models" / real_tower.NAME, args.device))
    failed, console = 0, Console(soft_wrap=True, highlight=False, markup=False)
    for compiles, group in groupby(lines(args.queue), lambda line: line.compiles):
        with model().fast("inductor" if compiles else None, cuda_graphs=True):
            for line in group:
                more = ["--shared", str(args.shared), "--device", args.device]
                out = ["--out", str(args.out / str(line.number))]
                console.print(f"=== {line.number}: {shlex.join(line.argv)}")
                began = time.monotonic()
                try:
                    real_tower.main([*line.argv, *more, *out], model)
                except (Exception, SystemExit):
                    traceback.print_exc()
                    failed += 1
                console.print(f"--- {time.monotonic() - began:.1f} s")
                for timer in timers:
                    console.print(timer.take())
                gc.collect()
    sys.exit(1 if failed else 0)


def lines(queue: Path) -> Iterator[Line]:
    """The commands of a file, with the numbers of their lines; it is read again after each."""
    number = 0
    while number < len(texts := queue.read_text().splitlines()):
        number += 1
        if argv := shlex.split(texts[number - 1], comments=True):
            yield Line(number, argv)


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
