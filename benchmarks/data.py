"""How fast images are read, decoded or from the cache, and how fast a million files are listed.

    python benchmarks/data.py --data-root ../shared/data        # about two minutes on two cores

Both are timed alternately in the same run, on the same cores, for the same random batches.
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

PREPROCESS = Preprocess(size=(224, 224), shortest=224)  # of CLIP ViT-B/16
BATCH = 256


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--data-root", type=Path, default=Path("../shared/data"))
    options.add_argument("--data", default="cub", help="a benchmark, or a path")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--files", type=int, default=1_000_000)
    options.add_argument("--out", type=Path, help="write the numbers as JSON")
    args = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        images = read_data(args.data, args.data_root).evaluation_images()
        results = reading_rates(images, Path(folder), args.rounds)
        results |= startup_cost(Path(folder) / "many", args.files)
    for name, value in results.items():
        sys.stdout.write(f"{name:48}{value:>14,.1f}\n")
    if args.out:
        args.out.write_text(json.dumps(results, indent=2))


def reading_rates(images: Images, folder: Path, rounds: int) -> dict[str, float]:
    """Images per second, the median over batches that are read both ways."""
    start = time.perf_counter()
    from_cache = cached(images, PREPROCESS, folder / "cache")
    build = len(images) / (time.perf_counter() - start)
    durations: dict[str, list[float]] = {"decoded": [], "cached": []}
    rng = np.random.default_rng(0)
    for _ in range(rounds):
        batch = rng.permutation(len(images))[:BATCH]
        for name, source in (("decoded", images), ("cached", from_cache)):
            start = time.perf_counter()
            source.read(batch, PREPROCESS)
            durations[name].append(time.perf_counter() - start)
    decoded, read = (BATCH / statistics.median(durations[name]) for name in ("decoded", "cached"))
    return {
        "cores": len(os.sched_getaffinity(0)),
        "images per second, decoded": decoded,
        "images per second, while the cache is built": build,
        "images per second, from the cache": read,
        "speed-up by the cache": read / decoded,
    }


def startup_cost(folder: Path, files: int) -> dict[str, float]:
    """Seconds and memory until a stream of this many (empty) files is ready."""
    for number in range(1000):
        class_folder = folder / f"class {number:03d}"
        class_folder.mkdir(parents=True)
        for image in range(files // 1000):
            os.close(os.open(class_folder / f"{image:07d}.jpg", os.O_CREAT | os.O_WRONLY))
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
        "seconds until the stream is ready": seconds,
        "megabytes of memory": megabytes,
    }


def measure_startup(folder: str) -> None:
    """Runs in a process of its own, so that only its memory is measured."""
    from retouch.data import Stream

    before = memory()
    start = time.perf_counter()
    stream = Stream.split(*read_data(folder).train_and_test(), tasks=10)
    seconds = time.perf_counter() - start
    assert len(stream.tasks) == 10
    sys.stdout.write(f"{seconds} {memory() - before}")


def memory() -> float:
    """Megabytes that this process holds (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    if os.environ.get("RETOUCH_START"):
        measure_startup(sys.argv[1])
    else:
        main()
