"""A `learn` on a CPU beside other programs: threads that wait by spinning or by sleeping.

    python benchmarks/busy_cores.py                    # the built-in model, no and one busy core
    python benchmarks/busy_cores.py --shape b16 --epochs 1 --photos 4

Each run is a process of its own (`first_learn_cpu.py`), in turn with OpenMP's own way of waiting
and with `OMP_WAIT_POLICY=PASSIVE`, which `retouch` sets. Seconds, the median of three.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from first_learn_cpu import ROOT, run, write_photos

POLICIES: dict[str, dict[str, str]] = {"spinning": {}, "sleeping": {"OMP_WAIT_POLICY": "PASSIVE"}}


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Inside this context, this many processes compute without a pause."""
    others = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(count)]
    for other in others:
        other.start()
    try:
        yield
    finally:
        for other in others:
            other.kill()


def _spin() -> None:
    while True:
        pass


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--shape", default="builtin", help="see shapes.py")
    options.add_argument("--epochs", type=int, default=8)
    options.add_argument("--photos", type=int, default=25, help="per class")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--busy", default="0,1", help="numbers of busy cores, as in 0,1,2")
    args = options.parse_args()
    arguments = [f"--{name}={getattr(args, name)}" for name in ("shape", "epochs", "threads")]
    os.environ.pop("OMP_WAIT_POLICY", None)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_photos(folder / "photos", classes=8, photos=args.photos)
        for busy in map(int, args.busy.split(",")):
            walls: dict[str, list[float]] = {policy: [] for policy in POLICIES}
            with busy_processes(busy):
                for number in range(3):
                    for policy, variables in POLICIES.items():
                        name = f"{policy}-{busy}-{number}"
                        measured = run(ROOT, folder, name, arguments, **variables)
                        walls[policy].append(measured["wall"])
            spinning, sleeping = (median(walls[policy]) for policy in POLICIES)
            sys.stdout.write(
                f"{busy} busy cores: {spinning} s spinning, {sleeping} s sleeping: "
                f"{spinning / sleeping:.2f} ×\n"
            )


if __name__ == "__main__":
    main()
