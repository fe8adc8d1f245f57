"""Read labelled images: a benchmark by its name, or anyone's own by where they lie.

A new source is a file in `sources/` and a line here.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from retouch.data.sources import (
    aircraft,
    birdsnap,
    cars,
    cifar100,
    coco,
    cub,
    folder,
    gtsrb,
    huggingface,
    imagenet,
    table,
    webdataset,
)
from retouch.data.sources.benchmark import Benchmark
from retouch.data.splits import Splits
from retouch.errors import UserError

BENCHMARKS = {
    each.name: each
    for each in (
        Benchmark("aircraft", aircraft.read, aircraft.MARKS),
        Benchmark("birdsnap", birdsnap.read, birdsnap.MARKS),
        Benchmark("cars", cars.read, cars.MARKS),
        Benchmark("cifar100", cifar100.read, cifar100.MARKS),
        Benchmark("cub", cub.read, cub.MARKS),
        Benchmark("gtsrb", gtsrb.read, gtsrb.MARKS),
        Benchmark("imagenet", imagenet.read, imagenet.MARKS),
        Benchmark("imagenet-raw", imagenet.read, imagenet.MARKS, like="imagenet"),
        Benchmark("coco", coco.read, coco.MARKS),
    )
}


@dataclass(frozen=True)
class SourceFormat:
    """A form in which people keep images of their own."""

    what: str
    recognises: Callable[[Path], bool]
    read: Callable[[Path], Splits]


# The first that recognises a path reads it.
SOURCE_FORMATS = {
    "table": SourceFormat("a .csv, .tsv or .jsonl of path and label", table.recognises, table.read),
    "webdataset": SourceFormat(
        "tar shards as CLIP_benchmark has", webdataset.recognises, webdataset.read
    ),
    "huggingface": SourceFormat(
        "a saved `datasets` data set", huggingface.recognises, huggingface.read
    ),
    "folders": SourceFormat("a folder of images per class", Path.is_dir, folder.read),
}


def data_root(root: str | Path | None = None) -> Path:
    """Where benchmarks lie: as asked for, or `RETOUCH_DATA`, or `data` in this folder."""
    return Path(root or os.environ.get("RETOUCH_DATA") or "data")


def read_data(source: str | Path, root: str | Path | None = None) -> Splits:
    """Find the images of a source. None is decoded yet.

    Args:
        source: The name of a benchmark (`retouch datasets` lists them); a path to class folders, a
            table, tar shards or a saved Hugging Face data set; or `hf:OWNER/NAME`.
        root: The folder in which benchmarks are looked for. Default: `RETOUCH_DATA`, or `data` in
            the current folder.
    """
    name = str(source)
    path = Path(source)
    if name in BENCHMARKS:
        for place in (data_root(root), path):
            if BENCHMARKS[name].find(place):
                return BENCHMARKS[name].read(place)
        if not path.exists():
            BENCHMARKS[name].refuse(data_root(root))
    if name.startswith(huggingface.PREFIX):
        return huggingface.read_hub(name)
    for form in SOURCE_FORMATS.values():
        if form.recognises(path):
            return form.read(path)
    close = get_close_matches(name, BENCHMARKS, 1)
    raise UserError(
        f"{name} is no data: no benchmark ({', '.join(BENCHMARKS)}) and no path to "
        f"{', '.join(form.what for form in SOURCE_FORMATS.values())}"
        + (f". Did you mean {close[0]}?" if close else "")
    )
