"""Subtract what does not compress from a picture: its noise, and light that fades across it.

`retouch.builtin.noise` adds both again.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from retouch.builtin.noise import ONE, STEEP, NoiseTable, add_noise, rounded_noise
from tools.pictures.canvas import SIZE, Pixels
from tools.pictures.effects import NoiseRecorder
from tools.pictures.sdf import Array
from tools.pictures.sets import SETS

Grid = NDArray[np.int64]
Plane = tuple[int, int, int]
"""An offset, a slope to the right and a slope downwards, as in the noise table."""
Trial = tuple[Grid, Plane]

ROUNDED = 4
"""Values of a picture, of 12,288, that may be rounded otherwise."""
SLOPES = 3
"""How many of a picture's slopes are tried; more save little."""
_FLAT = (ONE // 2, 0, 0)
_OFFSETS = range(0, ONE, ONE // 8)
_BINS = 64  # slopes that differ by less than 1/64 are counted as one


def subtract_noise(
    name: str, sheet: int, row: int, archived: Pixels | None = None
) -> tuple[Pixels, NoiseTable]:
    """Draw a picture; return it without its noise, and how to draw the noise again.

    Args:
        name: The set of the picture.
        sheet: Its sheet.
        row: Its row.
        archived: The picture in the archive, which is kept if only rounding differs.
    """
    seed = SETS[name].stored.picture_seed(sheet, row)
    rng = NoiseRecorder(np.random.PCG64(seed))
    picture = SETS[name].paint(row, rng)
    if archived is not None and not difference(picture, archived):
        picture = archived
    drawn = _draws(seed, rng), rng.state["has_uint32"], round(rng.width * 255 * ONE)
    pixels, canvas = picture.transpose(2, 0, 1).astype(int), rng.canvas * 255
    trials = (
        [
            _subtract(pixels[color], _noise(seed, drawn, plane)[color], canvas[color], plane)
            for plane in _planes(canvas[color])
        ]
        for color in range(3)
    )
    best = [_best(of_color) for of_color in trials]
    colors = [trial for trial in best if trial is not None]
    wraps = len(colors) < 3  # too much contrast for a byte
    if wraps:
        colors = [(pixels[c] - _noise(seed, drawn, _FLAT)[c], _FLAT) for c in range(3)]
    plain, planes = zip(*colors, strict=True)
    entry = np.array([*drawn, wraps, *np.ravel(planes)], np.int16)
    stored = np.stack(plain, 2).astype(np.uint8)
    assert np.array_equal(add_noise(stored, seed, entry), picture)
    return stored, entry


def difference(drawn: Pixels, archived: Pixels) -> str:
    """How two pictures differ beyond rounding, or "".

    Pixels depend on the processor: matrix products round differently from one BLAS kernel to the
    next, which changes about one value in a million by one level.
    """
    distance = np.abs(drawn.astype(int) - archived)
    if distance.max() <= 1 and np.count_nonzero(distance) <= ROUNDED:
        return ""
    return f"{np.count_nonzero(distance)} values, by up to {distance.max()}"


def _best(trials: list[Trial]) -> Trial | None:
    """The trial that compresses best, of those whose values and plane can be stored."""
    limits = np.iinfo(np.int16)
    fitting = [
        (plain, plane)
        for plain, plane in trials
        if plain.min() >= 0 and plain.max() <= 255
        and limits.min <= min(plane) and max(plane) <= limits.max
    ]  # fmt: skip
    return min(fitting, key=lambda trial: _estimated_bits(trial[0]), default=None)


def _noise(seed: list[int], drawn: tuple[int, int, int], plane: Plane) -> NDArray[np.int32]:
    return rounded_noise(seed, np.array([*drawn, 0, *plane * 3], np.int16), SIZE)


def _draws(seed: list[int], rng: NoiseRecorder) -> int:
    """How many 64-bit numbers were drawn before the noise."""
    generator, draws = np.random.PCG64(seed), 0
    while generator.state["state"] != rng.state["state"]:
        generator.advance(1)
        draws += 1
    return draws


def _planes(canvas: Array) -> Iterator[Plane]:
    """Planes to try: areas that have one of these slopes become flat, and fall on a whole value."""
    for offset in _OFFSETS:
        yield offset, 0, 0
    right, down = np.diff(canvas, axis=1)[:-1], np.diff(canvas, axis=0)[:, :-1]
    gentle = (np.abs(right) < 1.9) & (np.abs(down) < 1.9)
    right, down, heights = right[gentle], down[gentle], canvas[:-1, :-1][gentle]
    x, y = (place[gentle] - SIZE // 2 for place in np.meshgrid(*[np.arange(SIZE - 1)] * 2))
    pairs = np.rint(np.stack([right, down]) * _BINS)
    common, counts = np.unique(pairs, axis=1, return_counts=True)
    for pair in common.T[np.argsort(-counts, kind="stable")[:SLOPES]] / _BINS:
        like = (np.abs(right - pair[0]) < 1.5 / _BINS) & (np.abs(down - pair[1]) < 1.5 / _BINS)
        slopes = right[like].mean(), down[like].mean()
        fractions = (heights[like] - slopes[0] * x[like] - slopes[1] * y[like]) % 1
        histogram = np.bincount((fractions * 64).astype(int) % 64, minlength=64)
        spread = histogram + np.roll(histogram, 1) + np.roll(histogram, -1)
        offset = int((spread.argmax() + 0.5) / 64 * ONE) + ONE // 2
        yield offset, round(slopes[0] * STEEP), round(slopes[1] * STEEP)


def _subtract(picture: Grid, noise: NDArray[np.int32], canvas: Array, plane: Plane) -> Trial:
    """One color without its noise and a plane, and that plane, shifted so that it fits a byte."""
    plain = picture - noise
    black, white = picture == 0, picture == 255
    lowest, highest = plain[~white].min(initial=255), plain[~black].max(initial=0)
    shift = int(-lowest if lowest < 0 else min(0, 255 - highest))
    plain += shift
    # Black and white may come from any value beyond: take the canvas, which has no noise.
    place = np.arange(SIZE) - SIZE // 2
    surface = plane[0] / ONE - 0.5 + (plane[1] * place + plane[2] * place[:, None]) / STEEP
    smooth = np.rint(canvas - surface).astype(int) + shift
    smooth = smooth.clip(0, 255)
    plain = np.where(black, np.minimum(plain, smooth), plain)
    plain = np.where(white, np.maximum(plain, smooth), plain)
    return plain, (plane[0] - shift * ONE, plane[1], plane[2])


def _estimated_bits(plain: Grid) -> float:
    """How much the values differ from what their neighbors predict."""
    left, above, corner = plain[1:, :-1], plain[:-1, 1:], plain[:-1, :-1]
    low, high = np.minimum(left, above), np.maximum(left, above)
    residual = plain[1:, 1:] - (left + above - corner).clip(low, high)
    return float(np.log2(1 + np.abs(residual)).sum())
