"""Roadsides: what lies behind a sign, and what gets in front of it.

Nothing here needs to be sharp or correct. It has to be busy, varied and in the colors of a road, so
that a sign is not the only thing in its picture.
"""

from collections.abc import Sequence

import numpy as np

from tools.pictures.canvas import (
    SIZE,
    Placement,
    coverage,
    local_coordinates,
    per_pixel,
    pixel_grid,
    window,
)
from tools.pictures.effects import blur, smooth_noise
from tools.pictures.sdf import Array

Color = tuple[float, float, float]

SKIES = [(0.42, 0.64, 0.92), (0.62, 0.78, 0.95), (0.78, 0.82, 0.86), (0.9, 0.92, 0.94),
         (0.55, 0.6, 0.68)]  # fmt: skip
WALLS = [(0.72, 0.62, 0.5), (0.6, 0.32, 0.25), (0.82, 0.8, 0.75), (0.45, 0.47, 0.5),
         (0.85, 0.74, 0.5), (0.36, 0.3, 0.28)]  # fmt: skip
GREENS = [(0.16, 0.3, 0.12), (0.25, 0.42, 0.16), (0.35, 0.4, 0.18), (0.1, 0.2, 0.1)]
GROUNDS = [(0.3, 0.45, 0.2), (0.5, 0.47, 0.4), (0.62, 0.6, 0.56), (0.42, 0.4, 0.24)]


def random_color(rng: np.random.Generator, colors: Sequence[Color]) -> Array:
    """One of the colors, a little lighter or darker."""
    gain = 0.85 + 0.3 * float(rng.random())
    return np.array(colors[int(rng.integers(len(colors)))], np.float32) * np.float32(gain)


def _sky(rng: np.random.Generator) -> Array:
    """A canvas full of sky, paler towards the horizon."""
    color = per_pixel(random_color(rng, SKIES))
    down = pixel_grid()[1] / np.float32(SIZE)
    canvas = color + (np.float32(0.93) - color) * (down * np.float32(0.7))
    canvas *= np.float32(0.88) + smooth_noise(rng, 5, 4) * np.float32(0.2)
    return canvas


def _buildings(canvas: Array, rng: np.random.Generator, horizon: int) -> None:
    """Up to three blocks with rows of windows."""
    for _ in range(int(rng.integers(4))):
        left, width = int(rng.integers(-8, 56)), int(rng.integers(12, 34))
        top = int(rng.integers(0, horizon - 6))
        block = canvas[:, top : horizon + 2, max(0, left) : left + width]
        wall = per_pixel(random_color(rng, WALLS))
        block[:] = wall
        step = int(rng.integers(5, 9))
        for across in range(2):
            for down in range(2):
                block[:, 2 + down :: step, 2 + across :: step] = wall * np.float32(0.55)


def _trees(canvas: Array, rng: np.random.Generator, horizon: int) -> None:
    """A ragged line of leaves along the horizon."""
    _, y = pixel_grid()
    height = 2 + 34 * float(rng.random()) ** 1.5
    ragged = smooth_noise(rng, 2, 3 + int(rng.integers(10)))[:1]
    leaves = np.clip((y - (horizon - height * ragged * 1.6)) * np.float32(0.7), 0, 1)
    leaves *= y < horizon + 2
    green = per_pixel(random_color(rng, GREENS)) * (
        np.float32(0.6) + smooth_noise(rng, 16, 16) * np.float32(0.9)
    )
    canvas += (green - canvas) * leaves


def _road(canvas: Array, rng: np.random.Generator, horizon: int) -> None:
    """Verge, asphalt running to a vanishing point, and a center line."""
    x, y = pixel_grid()
    ground = (y > horizon).astype(np.float32)
    verge = per_pixel(random_color(rng, GROUNDS)) * (
        np.float32(0.8) + smooth_noise(rng, 12, 12) * np.float32(0.4)
    )
    canvas += (verge - canvas) * ground
    far, slant = float(rng.uniform(-10, 74)), float(rng.uniform(-1.5, 1.5))
    depth = y - np.float32(horizon)
    off = np.abs(x - far - slant * depth)
    asphalt = np.clip(depth * np.float32(rng.uniform(0.8, 2)) + 1 - off, 0, 1) * ground
    grey = np.float32(rng.uniform(0.28, 0.5))
    canvas += (grey - canvas) * asphalt
    line = np.clip(depth * np.float32(0.06) + np.float32(0.2) - off, 0, 1) * ground
    canvas += (np.float32(0.9) - canvas) * line


def roadside(rng: np.random.Generator) -> Array:
    """A blurred scene by the road, as a new canvas."""
    canvas = np.ascontiguousarray(_sky(rng), np.float32)
    horizon = int(rng.integers(30, 60))
    chance = rng.random(3).tolist()
    if chance[0] < 0.6:
        _buildings(canvas, rng, horizon)
    if chance[1] < 0.75:
        _trees(canvas, rng, horizon)
    _road(canvas, rng, horizon)
    blur(canvas, 0.6 + 2.4 * chance[2])
    return canvas


def foliage(
    rng: np.random.Generator, x: float, y: float, reach: float, _: float
) -> tuple[Array, Array]:
    """A bunch of leaves around (x, y): how much it covers each pixel, and its colors."""
    cover = np.zeros((SIZE, SIZE), np.float32)
    for angle, share, size in rng.random((7, 3)).tolist():
        radius, away = reach * (0.35 + 0.3 * size), reach * share
        dx, dy = away * np.cos(6.283 * angle), away * np.sin(6.283 * angle)
        place = Placement(x + dx, y + dy, radius, 180 * size)
        where = window(place)
        u, v = local_coordinates(place, where)
        leaf = coverage(np.hypot(u, v * 2) - np.float32(0.9), 1 / radius)
        cover[where] = np.maximum(cover[where], leaf)
    tone = np.float32(0.7) + smooth_noise(rng, 10, 10) * np.float32(0.8)
    return cover, per_pixel(random_color(rng, GREENS)) * tone


def bar(
    rng: np.random.Generator, x: float, y: float, reach: float, angle: float
) -> tuple[Array, Array]:
    """A post or a branch across (x, y), roughly perpendicular to the direction `angle`."""
    column, row = pixel_grid()
    angle += float(rng.uniform(-0.4, 0.4))
    across = (column - x) * np.float32(np.cos(angle)) + (row - y) * np.float32(np.sin(angle))
    cover = np.clip(np.float32(reach * 0.25 + 0.5) - np.abs(across), 0, 1)
    color = random_color(rng, [*WALLS, *GREENS])
    return cover, np.broadcast_to(per_pixel(color), (3, SIZE, SIZE))
