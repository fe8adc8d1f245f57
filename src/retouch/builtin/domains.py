"""Shapes and letters, drawn when they are needed: with the signs, three data sets for a stream.

They are small on purpose: to try a stream of several data sets, and to test one. A picture depends
on its class, its number and its split alone.
"""

import numpy as np
from numpy.typing import NDArray

from retouch.builtin.images import TEMPLATES, Split, sign_images
from retouch.clip.preprocess import Uint8
from retouch.data import Images, in_memory
from retouch.errors import UserError

SIZE = 64
Mask = NDArray[np.bool_]
Grid = NDArray[np.float64]

_POLYGONS = {"a triangle": 3, "a diamond": 4, "a pentagon": 5, "a hexagon": 6}
SHAPES = (*_POLYGONS, "a circle", "a ring", "a cross", "a star")
# Seven rows of five pixels each, a bit per pixel.
_GLYPHS = {
    "a": "0e11111f111111",
    "e": "1f10101e10101f",
    "h": "1111111f111111",
    "k": "11121418141211",
    "l": "1010101010101f",
    "o": "0e11111111110e",
    "t": "1f040404040404",
    "x": "11110a040a1111",
}
LETTERS = tuple(f"the letter {letter}" for letter in _GLYPHS)
DOMAINS = ("signs", "shapes", "letters")
"""The names of the built-in data sets: as `builtin:signs` and so on on the command line."""


def domain_images(name: str, split: Split, per_class: int) -> Images:
    """The pictures of one of the built-in data sets, each with prompts of its own.

    Args:
        name: One of `DOMAINS`.
        split: `train` or `test`, which have no picture in common.
        per_class: How many pictures of every class.
    """
    if name not in DOMAINS:
        raise UserError(f"builtin:{name} is no built-in data set; there are {', '.join(DOMAINS)}")
    if name == "signs":
        return sign_images(split, per_class)
    classes = SHAPES if name == "shapes" else LETTERS
    pixels = np.stack(
        [
            _picture(name, label, number, split)
            for label in range(len(classes))
            for number in range(per_class)
        ]
    )
    labels = np.repeat(np.arange(len(classes)), per_class)
    images = in_memory(f"built-in {name}, {split}", classes, labels, pixels)
    images.prompt = "a photo of {}" if name == "shapes" else "a picture of {}"
    images.templates = TEMPLATES if name == "shapes" else TEMPLATES[:2]
    return images


def _picture(domain: str, label: int, number: int, split: Split) -> Uint8:
    """A figure of some color, size and place on a noisy ground of another color."""
    rng = np.random.default_rng([DOMAINS.index(domain), label, number, split == "test"])
    across, angle = rng.uniform(18, 27), rng.uniform(-0.25, 0.25)
    x, y = (rng.uniform(-6, 6) for _ in range(2))
    column, row = np.meshgrid(np.arange(SIZE) - SIZE / 2 - x, np.arange(SIZE) - SIZE / 2 - y)
    u = (np.cos(angle) * column + np.sin(angle) * row) / across
    v = (np.cos(angle) * row - np.sin(angle) * column) / across
    figure = _shape(SHAPES[label], u, v) if domain == "shapes" else _letter(label, u, v)
    ground, color = rng.uniform(0, 255, (2, 3))
    if np.abs(ground - color).sum() < 200:  # too alike to see
        color = 255 - ground if np.abs(255 - 2 * ground).sum() > 200 else np.zeros(3)
    pixels = np.where(figure[..., None], color, ground) + rng.normal(0, 8, (SIZE, SIZE, 3))
    return np.asarray(pixels.clip(0, 255), np.uint8)


def _shape(name: str, u: Grid, v: Grid) -> Mask:
    radius, turn = np.hypot(u, v), np.arctan2(u, -v)  # from the top, clockwise
    if name in _POLYGONS:
        wedge = 2 * np.pi / _POLYGONS[name]
        return np.asarray(radius * np.cos((turn % wedge) - wedge / 2) < np.cos(wedge / 2))
    if name == "a star":
        wedge = 2 * np.pi / 5
        tip = np.abs((turn + wedge / 2) % wedge - wedge / 2) / (wedge / 2)  # 0 at a tip
        return np.asarray(radius < 1 - 0.6 * tip)
    if name == "a cross":
        return np.asarray((np.minimum(abs(u), abs(v)) < 0.3) & (np.maximum(abs(u), abs(v)) < 1))
    return np.asarray((radius < 1) & ((name == "a circle") | (radius > 0.6)))


def _letter(label: int, u: Grid, v: Grid) -> Mask:
    code = bytes.fromhex(list(_GLYPHS.values())[label])
    glyph = np.unpackbits(np.frombuffer(code, np.uint8)[:, None], axis=1)[:, 3:].astype(bool)
    row, column = np.floor((v + 1) * 3.5).astype(int), np.floor((u / 0.75 + 1) * 2.5).astype(int)
    inside = (row >= 0) & (row < 7) & (column >= 0) & (column < 5)
    return np.asarray(inside & glyph[row.clip(0, 6), column.clip(0, 4)])
