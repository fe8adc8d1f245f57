"""How fast images reach the model, decoded every time or read from the cache, and how long it takes
to start with a million files.

    python benchmarks/data.py --data-root ../shared/data        # about two minutes on two cores

Decoding and reading are timed alternately in the same run, on the same cores and random batches; so
are storing images in a run's folder and Pillow's own way to write a PNG. How busy building a cache
keeps the cores is compared with what bare Pillow decodes on one of them, before and after, in the
same run; `--files 0` leaves out the rest.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from retouch.clip.preprocess import Preprocess
from retouch.data import Images, Stream, cached, read_data
from retouch.data.loading.decode import workers
from retouch.train.run_folder.images import write_pngs

PREPROCESS = Preprocess(size=(224, 224), shortest=224)  # as CLIP ViT-B/16 takes them
BATCH = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-root", type=Path, default=Path("../shared/data"))
    parser.add_argument("--data", default="cub", help="a benchmark, or a path")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    options = parser.parse_args()
    images = read_data(options.data, options.data_root).evaluation_images()
    with tempfile.TemporaryDirectory() as folder:
        numbers = measure_throughput(images, Path(folder), options.rounds)
        numbers |= measure_storing(images, Path(folder), options.rounds)
        if options.files:
            numbers |= measure_start(Path(folder) / "many", options.files)
    for name, value in numbers.items():
        sys.stdout.write(f"{name:48}{value:>14,.1f}\n")
    if options.out:
        options.out.write_text(json.dumps(numbers, indent=2))


def measure_throughput(images: Images, folder: Path, rounds: int) -> dict[str, float]:
    """Images per second; the median over batches that both read."""
    sample = np.random.default_rng(1).permutation(len(images))[:BATCH]
    bare = [bare_pillow(images, sample)]
    began = time.perf_counter()
    timeline = Timeline()
    cached_images = cached(images, PREPROCESS, folder / "cache", progress=timeline)
    end = time.perf_counter()
    build = len(images) / (end - began)
    bare.append(bare_pillow(images, sample))
    one_core = statistics.mean(bare)
    seconds: dict[str, list[float]] = {"decoded": [], "cached": []}
    rng = np.random.default_rng(0)
    for _ in range(rounds):
        batch = rng.permutation(len(images))[:BATCH]
        for name, source in (("decoded", images), ("cached", cached_images)):
            start = time.perf_counter()
            source.read(batch, PREPROCESS)
            seconds[name].append(time.perf_counter() - start)
    decoded, read = (BATCH / statistics.median(seconds[name]) for name in ("decoded", "cached"))
    return {
        "cores": len(os.sched_getaffinity(0)),
        "images per second, decoded": decoded,
        "images per second, bare Pillow on one core": one_core,
        "images per second, while the cache is built": build,
        "of all cores' bare Pillow, percent": 100 * build / (one_core * workers()),
        "the same, once all processes run, percent": 100 * timeline.speed / (one_core * workers()),
        "seconds until the first block": timeline.blocks[0][0] - began,
        "seconds from the last block to the end": end - timeline.blocks[-1][0],
        "images per second, from the cache": read,
        "times as fast from the cache": read / decoded,
    }


def measure_storing(images: Images, folder: Path, rounds: int) -> dict[str, float]:
    """Images per second that a run stores, and that Pillow's defaults would in one thread."""
    rng, names = np.random.default_rng(2), [f"{number}.png" for number in range(BATCH)]
    seconds: dict[str, list[float]] = {"stored": [], "Pillow": []}
    sizes = dict.fromkeys(seconds, 0)
    for _ in range(rounds):
        pixels = images.read(rng.permutation(len(images))[:BATCH], PREPROCESS)
        for kind, took in seconds.items():
            (folder / kind).mkdir(exist_ok=True)
            start = time.perf_counter()
            if kind == "stored":
                write_pngs(folder / kind, names, pixels)
            else:
                for name, array in zip(names, pixels, strict=True):
                    Image.fromarray(array).save(folder / kind / name)
            took.append(time.perf_counter() - start)
            sizes[kind] += sum(file.stat().st_size for file in (folder / kind).iterdir())
    stored, pillow = (BATCH / statistics.median(seconds[kind]) for kind in seconds)
    return {
        "images per second, stored to continue from": stored,
        "images per second, Pillow's PNG in one thread": pillow,
        "times as fast": stored / pillow,
        "times as large": sizes["stored"] / sizes["Pillow"],
    }


class Timeline:
    """When each block of images was decoded."""

    def __init__(self) -> None:
        self.blocks: list[tuple[float, int]] = []

    def __call__(self, blocks: Iterable[Any], what: str, total: int) -> Iterator[Any]:
        for block in blocks:
            self.blocks.append((time.perf_counter(), len(block)))
            yield block

    @property
    def speed(self) -> float:
        """Images per second after the first tenth, when every process has begun."""
        first = len(self.blocks) // 10
        images = sum(count for _, count in self.blocks[first + 1 :])
        return images / (self.blocks[-1][0] - self.blocks[first][0])


def bare_pillow(images: Images, sample: np.ndarray) -> float:
    """Images per second that one thread opens, decodes, resizes and crops with Pillow alone."""
    encoded = []
    for index in sample:
        place = images.store.file_range(int(index))
        assert place is not None
        encoded.append(place.read())
    start = time.perf_counter()
    for content in encoded:
        with Image.open(BytesIO(content)) as image:
            short = min(image.size)
            size = tuple(int(PREPROCESS.size[0] * side / short) for side in image.size)
            resized = image.convert("RGB").resize(size, PREPROCESS.resample)
            left, top = ((side - PREPROCESS.size[0]) // 2 for side in size)
            resized.crop((left, top, left + 224, top + 224)).tobytes()
    return len(encoded) / (time.perf_counter() - start)


def measure_start(folder: Path, files: int) -> dict[str, float]:
    """Seconds and memory until a stream of this many (empty) files is ready for training."""
    for number in range(1000):
        class_folder = folder / f"class {number:03d}"
        class_folder.mkdir(parents=True)
        for image in range(files // 1000):
            os.close(os.open(class_folder / f"{image:07d}.jpg", os.O_CREAT | os.O_WRONLY))
    process = subprocess.run(
        [sys.executable, __file__, str(folder)],
        env=os.environ | {"RETOUCH_START": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, megabytes = map(float, process.stdout.split())
    return {
        "files": float(files),
        "seconds until their stream is ready": seconds,
        "megabytes that it takes": megabytes,
    }


def start_stream(folder: str) -> None:
    """Runs in its own process, so that its memory can be measured."""
    memory_before = memory()
    start = time.perf_counter()
    stream = Stream.split(*read_data(folder).train_and_test(), tasks=10)
    seconds = time.perf_counter() - start
    assert len(stream.tasks) == 10
    sys.stdout.write(f"{seconds} {memory() - memory_before}")


def memory() -> float:
    """Resident megabytes of this process (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    if os.environ.get("RETOUCH_START"):
        start_stream(sys.argv[1])
    else:
        main()
