"""How fast images reach the model: decoded every time against read from the cache, and how long a
million files take to begin with.

    python benchmarks/data.py --data-root ../shared/data        # about two minutes on two cores

Both are timed in turns in the same run, on the same cores, for the same random batches.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from retouch.clip.preprocess import Preprocess
from retouch.data import Images, cached, read_data

PIXELS = Preprocess(size=(224, 224), shortest=224)  # as CLIP ViT-B/16 takes them
BATCH = 256


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--data-root", type=Path, default=Path("../shared/data"))
    options.add_argument("--data", default="cub", help="a benchmark, or a path")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--files", type=int, default=1_000_000)
    options.add_argument("--out", type=Path, help="write the numbers as JSON")
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = rates(
            read_data(asked.data, asked.data_root).evaluation_images(), Path(folder), asked.rounds
        )
        found |= start(Path(folder) / "many", asked.files)
    for name, value in found.items():
        sys.stdout.write(f"{name:48}{value:>14,.1f}\n")
    if asked.out:
        asked.out.write_text(json.dumps(found, indent=2))


def rates(images: Images, folder: Path, rounds: int) -> dict[str, float]:
    """Images a second, in the median over batches that both read."""
    began = time.perf_counter()
    kept = cached(images, PIXELS, folder / "cache")
    build = len(images) / (time.perf_counter() - began)
    took: dict[str, list[float]] = {"decoded": [], "cached": []}
    rng = np.random.default_rng(0)
    for _ in range(rounds):
        batch = rng.permutation(len(images))[:BATCH]
        for name, source in (("decoded", images), ("cached", kept)):
            began = time.perf_counter()
            source.read(batch, PIXELS)
            took[name].append(time.perf_counter() - began)
    decoded, read = (BATCH / statistics.median(took[name]) for name in ("decoded", "cached"))
    return {
        "cores": len(os.sched_getaffinity(0)),
        "images a second, decoded": decoded,
        "images a second, while the cache is built": build,
        "images a second, from the cache": read,
        "times as fast from the cache": read / decoded,
    }


def start(folder: Path, files: int) -> dict[str, float]:
    """Seconds and memory until a stream of so many (empty) files is ready to learn from."""
    for number in range(1000):
        place = folder / f"class {number:03d}"
        place.mkdir(parents=True)
        for image in range(files // 1000):
            os.close(os.open(place / f"{image:07d}.jpg", os.O_CREAT | os.O_WRONLY))
    done = subprocess.run(
        [sys.executable, __file__, str(folder)],
        env=os.environ | {"RETOUCH_START": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, megabytes = map(float, done.stdout.split())
    return {
        "files": float(files),
        "seconds until their stream is ready": seconds,
        "megabytes that it takes": megabytes,
    }


def start_here(folder: str) -> None:
    """In a process of its own, so that its memory can be told from the rest."""
    from retouch.data import Stream

    before = memory()
    began = time.perf_counter()
    stream = Stream.split(*read_data(folder).train_and_test(), tasks=10)
    seconds = time.perf_counter() - began
    assert len(stream.tasks) == 10
    sys.stdout.write(f"{seconds} {memory() - before}")


def memory() -> float:
    """Megabytes that this process holds (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    if os.environ.get("RETOUCH_START"):
        start_here(sys.argv[1])
    else:
        main()
