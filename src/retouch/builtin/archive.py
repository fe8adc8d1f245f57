"""The archive of rendered pictures that comes with the package.

`pictures.tar` holds `index.json` and sheets of pictures without their noise, compressed without
loss. The noise is added when they are read, from a table such as `signs-train/noise.npy` (see
`retouch.builtin.noise`). For signs and control classes, sheet n holds picture n of every class, so
a few pictures per class are a few sheets to decode. A sheet is one image or several, such as
`control/07-0.webp` to `control/07-3.webp`, each a column of up to 40 pictures.
`tools/render.py` in the source repository writes the archive; a test draws some of the pictures
again and compares every pixel.
"""

import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import IO

import numpy as np
from PIL import Image, UnidentifiedImageError
from pydantic import BaseModel

from retouch.builtin.noise import add_noise
from retouch.clip.preprocess import Uint8
from retouch.errors import UserError

ARCHIVE = files("retouch.builtin") / "pictures.tar"
COLUMN = 40
"""Pictures per image: with more, libwebp adapts to larger areas, and the files are 4 % larger."""


class PictureSet(BaseModel):
    """How a set of pictures is stored."""

    sheets: int
    rows: int
    """Pictures per sheet."""
    seed: int
    by_class: bool
    """Whether sheet n holds picture n of every class."""

    def images(self, sheet: int) -> list[str]:
        """The names of a sheet's images."""
        return [f"{sheet:02}-{part}.webp" for part in range(-(-self.rows // COLUMN))]

    def picture_seed(self, sheet: int, row: int) -> list[int]:
        """The seed that a picture was drawn from."""
        if self.by_class:
            return [self.seed, row, sheet]
        return [self.seed, 0, sheet * self.rows + row]


class SignClass(BaseModel):
    """A traffic sign: what it is called, and what it looks like."""

    name: str
    description: str


class BoxedObject(BaseModel):
    """The object in a picture: what it looks like, and its box."""

    description: str
    box: tuple[float, float, float, float]
    """Left, top, width and height in pixels."""


class Index(BaseModel):
    """What the archive holds besides pixels."""

    picture_size: int
    """Height and width of every picture."""
    sets: dict[str, PictureSet]
    signs: list[SignClass]
    control: list[str]
    """The names of the control classes."""
    captions: list[str]
    """One per picture of the set `pairs`."""
    boxes: list[BoxedObject]
    """One per picture of the set `boxes`."""


@cache
def read_index() -> Index:
    """The table of contents, with class names, captions and boxes."""
    with _opened() as archive:
        return Index.model_validate(json.load(_member(archive, "index.json")))


def read_sheets(name: str, count: int) -> Uint8:
    """The first `count` sheets of a set as pixels [sheet, row, height, width, 3]."""
    size, stored = read_index().picture_size, read_index().sets[name]
    pixels = np.empty((count, stored.rows, size, size, 3), np.uint8)
    with _opened() as archive:
        noise = np.load(io.BytesIO(_member(archive, f"{name}/noise.npy").read()))
        for number in range(count):
            columns = [_decode(_member(archive, f"{name}/{i}")) for i in stored.images(number)]
            for row, picture in enumerate(np.concatenate(columns).reshape(pixels.shape[1:])):
                seed = stored.picture_seed(number, row)
                pixels[number, row] = add_noise(picture, seed, noise[number, row])
    return pixels


def check_request(requested: int, shipped: int, what: str) -> None:
    """Raise `UserError` unless the archive holds as many as are requested."""
    if not 1 <= requested <= shipped:
        raise UserError(
            f"{requested} {what} requested, but the package comes with {shipped}; ask for 1 to "
            f"{shipped}, or draw more with tools/pictures in the source repository"
        )


@contextmanager
def _opened() -> Iterator[tarfile.TarFile]:
    with ARCHIVE.open("rb") as file, tarfile.open(fileobj=file) as archive:
        yield archive


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    member = archive.extractfile(name)
    assert member is not None, f"{name} is no file in {ARCHIVE}"
    return member


def _decode(file: IO[bytes]) -> Uint8:
    try:
        with Image.open(file) as image:
            return np.asarray(image.convert("RGB"))
    except UnidentifiedImageError:
        raise UserError(
            "the built-in pictures are WebP, which this build of Pillow cannot read; install "
            "Pillow from PyPI, whose wheels can"
        ) from None
