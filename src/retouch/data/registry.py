"""Read images by name: a benchmark, your own by their path, or those that come with the package.

A new source is a file in `formats/` or `benchmarks/` and a line here.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path

from retouch.arguments import check_arguments
from retouch.data.benchmarks import (
    aircraft,
    birdsnap,
    caltech101,
    cars,
    cifar100,
    cub,
    dtd,
    eurosat,
    flowers102,
    food101,
    gtsrb,
    imagenet,
    mnist,
    pets,
    sun397,
)
from retouch.data.benchmarks.benchmark import Benchmark
from retouch.data.formats import coco, folder, huggingface, table, webdataset
from retouch.data.images import Images
from retouch.data.pairs import Pairs, pairs_of
from retouch.data.splits import Splits
from retouch.errors import UserError

BUILTIN = "builtin:"
"""What the names of pictures that come with the package begin with."""


def data_set_name(source: str) -> str:
    """What a data set is called in a stream: `dtd` for `dtd:coop`, and the last part of a path."""
    if benchmark := find_benchmark(source):
        return benchmark.name
    return Path(source).name.removeprefix(BUILTIN) or source


def data_set_names(sources: Sequence[str]) -> list[str]:
    """A name for each data set; if the short ones are not different, they are called as given."""
    short = [data_set_name(source) for source in sources]
    names = short if len(set(short)) == len(short) else list(sources)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"{twice} is given twice; name each data set once")
    return names


BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark("aircraft", aircraft.read, aircraft.MARKER_PATHS),
        Benchmark("birdsnap", birdsnap.read, birdsnap.MARKER_PATHS),
        Benchmark("caltech101", caltech101.read, caltech101.MARKER_PATHS),
        Benchmark("cars", cars.read, cars.MARKER_PATHS),
        Benchmark("cifar100", cifar100.read, cifar100.MARKER_PATHS),
        Benchmark("cub", cub.read, cub.MARKER_PATHS),
        Benchmark("dtd", dtd.read, dtd.MARKER_PATHS),
        Benchmark("eurosat", eurosat.read, eurosat.MARKER_PATHS),
        Benchmark("flowers102", flowers102.read, flowers102.MARKER_PATHS),
        Benchmark("food101", food101.read, food101.MARKER_PATHS),
        Benchmark("gtsrb", gtsrb.read, gtsrb.MARKER_PATHS),
        Benchmark("mnist", mnist.read, mnist.MARKER_PATHS),
        Benchmark("pets", pets.read, pets.MARKER_PATHS),
        Benchmark("sun397", sun397.read, sun397.MARKER_PATHS),
        Benchmark("imagenet", imagenet.read, imagenet.MARKER_PATHS),
        Benchmark("imagenet-raw", imagenet.read, imagenet.MARKER_PATHS, variant_of="imagenet"),
        Benchmark("coco", coco.read, coco.MARKER_PATHS),
    )
}


@dataclass(frozen=True)
class SourceFormat:
    """A format in which people keep their own images."""

    description: str
    matches: Callable[[Path], bool]
    read: Callable[[Path], Splits]


# The first format that matches a path reads it.
SOURCE_FORMATS = {
    "table": SourceFormat(
        "a .csv, .tsv or .jsonl file with paths and labels", table.matches, table.read
    ),
    "webdataset": SourceFormat(
        "tar shards in CLIP_benchmark's layout", webdataset.matches, webdataset.read
    ),
    "huggingface": SourceFormat(
        "a data set saved by `datasets`", huggingface.matches, huggingface.read
    ),
    "folders": SourceFormat(
        "a folder with one folder of images per class", Path.is_dir, folder.read
    ),
}


@dataclass(frozen=True)
class PackagedSource:
    """Images that come with the package."""

    read: Callable[[str], Splits]
    """From NAME or NAME:SET."""
    read_few: Callable[[str], Splits]
    """The same with few images of each class, for a quick look."""
    control: str
    """What NAME stands for as a control set."""
    read_pairs: Callable[[], Pairs]
    """Images with captions."""


PACKAGED = {"builtin": "retouch.builtin.source"}
"""The module that has each packaged source as `SOURCE`; it is imported on first use."""


def packaged_source(name: str) -> PackagedSource | None:
    """The packaged source that a name is of, NAME or NAME:SET; None if it is of none."""
    module = PACKAGED.get(name.partition(":")[0])
    return import_module(module).SOURCE if module else None


def data_root(root: str | Path | None = None) -> Path:
    """The folder that holds the benchmarks: `root`, else `RETOUCH_DATA`, else `data`."""
    return Path(root or os.environ.get("RETOUCH_DATA") or "data")


def find_benchmark(name: str) -> Benchmark | None:
    """The benchmark with this name, NAME or NAME:SPLIT; None if there is none."""
    benchmark_name, colon, split = name.partition(":")
    benchmark = BENCHMARKS.get(benchmark_name)
    return benchmark.with_split(split) if benchmark and colon else benchmark


@check_arguments(source="give a path, or the name of a benchmark (`retouch datasets` lists them)")
def read_data(source: str | Path, root: str | Path | None = None) -> Splits:
    """The labeled images of a source. No image is decoded yet.

    Args:
        source: The name of a benchmark (see `retouch datasets`), which is looked for in `root`, or
            NAME:SPLIT if it has several splits, such as `eurosat:coop`; a path to class folders, a
            table, tar shards or a saved data set; `hf:OWNER/NAME`; or `builtin`, the pictures that
            come with the package.
        root: The folder that holds the benchmarks; `RETOUCH_DATA` or `data` if not given.
    """
    name = str(source)
    path = Path(source)
    if packaged := packaged_source(name):
        return packaged.read(name)
    if benchmark := find_benchmark(name):
        for location in (data_root(root), Path(benchmark.name)):
            if benchmark.find(location):
                return benchmark.read(location)
        if not path.exists():
            benchmark.raise_not_found(data_root(root))
    if name.startswith(huggingface.PREFIX):
        return huggingface.read_hub(name)
    for source_format in SOURCE_FORMATS.values():
        if source_format.matches(path):
            return source_format.read(path)
    raise UserError(_why_not_readable(path))


@check_arguments()
def read_control(source: str | Path, root: str | Path | None = None) -> Images:
    """The images of a control set: the test images of a source, or all if it is not split.

    Args:
        source: As for `read_data`; `builtin` is what the built-in model was trained on.
        root: The folder that holds the benchmarks, as for `read_data`.
    """
    packaged = packaged_source(str(source)) if str(source) in PACKAGED else None
    return read_data(packaged.control if packaged else source, root).evaluation_images()


@check_arguments()
def read_pairs(source: str | Path) -> Pairs:
    """Images with captions. No image is decoded yet.

    Args:
        source: A tar shard or a folder of them (CC12M and others, as img2dataset writes them), a
            table with the columns `path` and `caption`, a folder with COCO's captions, or
            `builtin`.
    """
    packaged = packaged_source(str(source))
    return packaged.read_pairs() if packaged else pairs_of(Path(source))


def _why_not_readable(path: Path) -> str:
    """What is wrong with a path that no format matches, and what it may have meant."""
    formats = ", ".join(form.description for form in reversed(SOURCE_FORMATS.values()))
    remedy = f"give {formats}, or the name of a benchmark (`retouch datasets` lists them)"
    if path.exists():
        return f"{path} cannot be read as images with labels; {remedy}"
    siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    close = [str(path.with_name(name)) for name in get_close_matches(path.name, siblings, 1)]
    close += get_close_matches(str(path), BENCHMARKS, 1)
    hint = f". Did you mean {close[0]}?" if close else ""
    return f"{path}: there is no such file or folder, nor a benchmark of that name; {remedy}{hint}"
