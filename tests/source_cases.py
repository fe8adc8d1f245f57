"""A case for every source of images: how its fixture is written and what it is read as."""

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import domain_layouts
import layouts
import numpy as np

from retouch.clip.preprocess import Preprocess
from retouch.data import Images, Splits, read_data

PREPROCESS = Preprocess(size=(8, 8), shortest=8)
DEEP_JSON = b"[" * 100_000 + b"]" * 100_000
PREPROCESS_16 = Preprocess(size=(16, 16), shortest=16)


class Case(NamedTuple):
    """How a fixture is written, and what it is read as: a name, or a path below the folder."""

    write: Callable[[Path], dict[str, dict[str, int]]]
    source: str
    source_format: str = ""
    """For your own images; "" for a benchmark."""
    is_grey: bool = False
    """Whether its images have no colors."""


CASES = {
    "aircraft": Case(layouts.write_aircraft, "aircraft"),
    "birdsnap": Case(layouts.write_birdsnap, "birdsnap"),
    "cars": Case(layouts.write_cars, "cars"),
    "cars-joined": Case(layouts.write_cars_joined, "cars"),
    "cifar100": Case(layouts.write_cifar100, "cifar100"),
    "cub": Case(layouts.write_cub, "cub"),
    "gtsrb": Case(layouts.write_gtsrb, "gtsrb"),
    "gtsrb-fixed": Case(layouts.write_gtsrb_fixed, "gtsrb"),
    "imagenet": Case(layouts.write_imagenet_folders, "imagenet"),
    "imagenet-flat": Case(layouts.write_imagenet_flat, "imagenet"),
    "imagenet-raw": Case(layouts.write_imagenet_flat, "imagenet-raw"),
    "coco": Case(layouts.write_coco, "coco"),
    "aircraft-zscl": Case(domain_layouts.write_aircraft_train, "aircraft:zscl"),
    "aircraft-coop": Case(domain_layouts.write_aircraft_train, "aircraft:coop"),
    "caltech101": Case(domain_layouts.write_caltech101, "caltech101"),
    "caltech101-coop": Case(domain_layouts.write_caltech101_coop, "caltech101:coop"),
    "cars-coop": Case(domain_layouts.write_cars_coop, "cars:coop"),
    "dtd": Case(domain_layouts.write_dtd, "dtd"),
    "dtd-zscl": Case(partial(domain_layouts.write_dtd, lists=["train"]), "dtd:zscl"),
    "dtd-coop": Case(domain_layouts.write_dtd_coop, "dtd:coop"),
    "eurosat": Case(domain_layouts.write_eurosat, "eurosat"),
    "eurosat-coop": Case(domain_layouts.write_eurosat_coop, "eurosat:coop"),
    "flowers102": Case(domain_layouts.write_flowers102, "flowers102"),
    "flowers102-zscl": Case(
        partial(domain_layouts.write_flowers102, lists=["train"]), "flowers102:zscl"
    ),
    "flowers102-coop": Case(domain_layouts.write_flowers102_coop, "flowers102:coop"),
    "food101": Case(domain_layouts.write_food101, "food101"),
    "food101-coop": Case(domain_layouts.write_food101_coop, "food101:coop"),
    "mnist": Case(domain_layouts.write_mnist, "mnist", is_grey=True),
    "mnist-packed": Case(partial(domain_layouts.write_mnist, packed=True), "mnist", is_grey=True),
    "pets": Case(domain_layouts.write_pets, "pets"),
    "pets-coop": Case(domain_layouts.write_pets_coop, "pets:coop"),
    "sun397": Case(domain_layouts.write_sun397, "sun397"),
    "sun397-coop": Case(domain_layouts.write_sun397_coop, "sun397:coop"),
    "csv": Case(layouts.write_csv, "photos.csv", "table"),
    "jsonl": Case(layouts.write_jsonl, "photos.jsonl", "table"),
    "webdataset": Case(layouts.write_webdataset, "own", "webdataset"),
    "huggingface": Case(layouts.write_hf, "hf", "huggingface"),
    "folders": Case(layouts.write_folders, "photos", "folders"),
}


def read_case(case: Case, folder: Path) -> Splits:
    return read_data(folder / case.source if case.source_format else case.source, folder)


def splits_of(splits: Splits) -> dict[str, Images]:
    """The splits that exist, by their names."""
    by_name = {"train": splits.train, "test": splits.test}
    return {split: images for split, images in by_name.items() if images is not None}


def split_folders(splits: Splits) -> tuple[str | None, str | None]:
    """The names of the folders that were read as train and test."""
    names = [images and Path(images.name).name for images in (splits.train, splits.test)]
    return names[0], names[1]


def notes_of(splits: Splits) -> list[str]:
    return (splits.train or splits.evaluation_images()).notes


def read_everything(splits: Splits) -> None:
    """Do what every command does with images: compute their version, and read them all."""
    for images in (splits.train, splits.test):
        if images is not None:
            json.dumps(images.classes, ensure_ascii=False).encode()
            images.store.version()
            images.store.try_read(np.arange(len(images)), PREPROCESS)


def read_all(images: Images, preprocess: Preprocess = PREPROCESS_16) -> np.ndarray:
    return images.read(np.arange(len(images)), preprocess)


def is_image(file: Path) -> bool:
    return file.suffix.lower() in (".jpg", ".jpeg", ".png", ".ppm", ".webp")


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Fail instead of hanging."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"it took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


_TOKENS = [
    b"\0", b"\xff", b"\xed\xa0\x80", b'"', b"\\ud800", b"[" * 3000, b"9" * 4999, b"-1", b"1e999",
    b"{}", b"null", b"\n", b"\r", b",", b"\t", b" ", b"../", b"x" * 5000, "²".encode(), b"\xfe\xff",
]  # fmt: skip


def damaged(original: bytes, rng: np.random.Generator) -> bytes:
    """Truncated, some bytes removed, a bit flipped, or a token inserted or written over some."""
    start, end = sorted(int(n) for n in rng.integers(0, len(original) + 1, 2))
    token = _TOKENS[rng.integers(len(_TOKENS))]
    if (how := rng.integers(6)) == 0:
        return original[:start]
    if how == 1:
        return original[:start] + original[min(end, start + 9) :]
    if how == 2 and start < len(original):
        flipped = bytes([original[start] ^ 1 << int(rng.integers(8))])
        return original[:start] + flipped + original[start + 1 :]
    if how == 3:
        return original[:start] + token + original[start + len(token) :]
    if how == 4:
        return token
    return original[:start] + token + original[start:]
