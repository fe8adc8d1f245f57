"""Backgrounds of scenes, and how captions name them.

Some backgrounds have a color ("on a yellow background"), others are a material ("on grass") with
colors of its own. Every painter returns a new canvas.
"""

from collections.abc import Callable
from functools import cache

import numpy as np

from tools.pictures.canvas import SIZE, fraction, per_pixel, pixel_grid
from tools.pictures.colors import shade
from tools.pictures.effects import smooth_noise
from tools.pictures.roadside import roadside
from tools.pictures.sdf import Array

Painter = Callable[[np.random.Generator, str], Array]

# How captions name a material, and which colors would not stand out on it.
MATERIALS: dict[str, tuple[tuple[str, ...], frozenset[str]]] = {
    "sky": (("in the sky", "against the sky"), frozenset({"cyan", "blue", "white", "grey"})),
    "grass": (("on grass", "on the grass"), frozenset({"green", "brown", "grey"})),
    "brick": (("on a brick wall", "on bricks"), frozenset({"red", "brown", "orange", "grey"})),
    "water": (("on water", "in the water"), frozenset({"blue", "cyan", "purple", "grey", "green"})),
    "sand": (("on sand", "on the beach"), frozenset({"yellow", "orange", "brown", "pink", "grey"})),
    "night": (("at night", "in the night sky"), frozenset({"black", "brown", "purple", "blue"})),
    "snow": (("on snow", "in the snow"), frozenset({"white", "yellow", "cyan", "grey"})),
    "wood": (("on wood", "on a wooden table"), frozenset({"brown", "orange", "red", "grey"})),
    "street": (("by the road", "in the street"), frozenset({"grey", "green", "brown"})),
}
# How captions name a colored background.
COLORED: dict[str, tuple[str, ...]] = {
    "plain": ("on {a_color} background", "on a plain {color} background", "on {color}"),
    "gradient": ("on {a_color} background", "on a shaded {color} background"),
    "stripes": ("on a striped {color} background", "on {color} stripes"),
    "tiles": ("on a tiled {color} background", "on {color} tiles"),
    "noise": ("on a noisy {color} background", "on {a_color} background"),
}


def _mix(low: list[float], high: list[float], share: Array) -> Array:
    """Blend two colors pixel by pixel."""
    first, second = np.array(low, np.float32), np.array(high, np.float32)
    return per_pixel(first) + per_pixel(second - first) * share


@cache
def _vertical_ramp() -> Array:
    """0 at the top of the picture, 1 at the bottom."""
    return pixel_grid()[1] / np.float32(SIZE)


def _plain(rng: np.random.Generator, color: str) -> Array:
    return np.ones((1, SIZE, SIZE), np.float32) * per_pixel(shade(color, rng))


def _shaded(rng: np.random.Generator, color: str, share: Array, depth: float) -> Array:
    """A color made lighter or darker where `share` goes from 0 to 1."""
    base = shade(color, rng)
    depth *= 0.5 if color == "grey" else 1.0  # or it would look white
    target = np.float32(0.0 if base.mean() > 0.7 else 1.0)
    return per_pixel(base) + per_pixel(target - base) * (share * np.float32(depth))


def _gradient(rng: np.random.Generator, color: str) -> Array:
    x, y = pixel_grid()
    angle = float(rng.random()) * 2 * np.pi
    ramp = x * np.float32(np.cos(angle)) + y * np.float32(np.sin(angle))
    ramp = (ramp - ramp.min()) / np.float32(np.ptp(ramp))
    return _shaded(rng, color, ramp, 0.3)


def _stripes(rng: np.random.Generator, color: str) -> Array:
    x, y = pixel_grid()
    angle, period = float(rng.random()) * np.pi, 5 + 7 * float(rng.random())
    across = x * np.float32(np.cos(angle) / period) + y * np.float32(np.sin(angle) / period)
    wave = np.clip(np.abs(fraction(across) - np.float32(0.5)) * 4 - np.float32(0.5), 0, 1)
    return _shaded(rng, color, wave, 0.25)


def _tiles(rng: np.random.Generator, color: str) -> Array:
    x, y = pixel_grid()
    period, dx, dy = (7 + 7 * rng.random(3)).tolist()
    column, row = fraction((x + dx) / period), fraction((y + dy) / period)
    joint = np.minimum(column, row) < 1.5 / period
    return _shaded(rng, color, joint.astype(np.float32), 0.35)


def _noise(rng: np.random.Generator, color: str) -> Array:
    cells = 4 + int(rng.integers(14))
    return _shaded(rng, color, smooth_noise(rng, cells, cells), 0.35)


def _sky(rng: np.random.Generator, _: str) -> Array:
    canvas = _mix([0.3, 0.58, 0.93], [0.68, 0.86, 0.98], _vertical_ramp())
    cloud = np.clip(smooth_noise(rng, 7, 4) * 2 - np.float32(0.95 + 0.4 * rng.random()), 0, 0.8)
    canvas += (1 - canvas) * cloud
    return canvas


def _grass(rng: np.random.Generator, _: str) -> Array:
    blades = smooth_noise(rng, 14, 48) * np.float32(0.7) + smooth_noise(rng, 4, 4) * np.float32(0.3)
    return _mix([0.12, 0.36, 0.06], [0.42, 0.68, 0.2], blades)


def _brick(rng: np.random.Generator, _: str) -> Array:
    x, y = pixel_grid()
    height, shift = 7 + 3 * float(rng.random()), float(rng.random())
    level = y / height + shift
    course = np.floor(level)
    across = fraction(x / (2 * height) + course / 2 + shift)
    joint = (across < 0.65 / height) | (level - course < 1.3 / height)
    canvas = _mix([0.55, 0.22, 0.15], [0.72, 0.35, 0.24], smooth_noise(rng, 9, 7))
    return np.where(joint, per_pixel(np.array([0.76, 0.7, 0.64], np.float32)), canvas)


def _water(rng: np.random.Generator, _: str) -> Array:
    x, y = pixel_grid()
    ripple = np.sin(y * np.float32(0.7 + 0.5 * rng.random()) + 4 * smooth_noise(rng, 5, 5))
    share = (ripple * np.float32(0.35) + np.float32(0.4)) * (1 - x / 400) + smooth_noise(
        rng, 24, 8
    ) * 0.2
    return _mix([0.05, 0.28, 0.5], [0.3, 0.6, 0.8], share)


def _sand(rng: np.random.Generator, _: str) -> Array:
    grains = rng.random((SIZE, SIZE), dtype=np.float32) * np.float32(0.5)
    return _mix([0.74, 0.62, 0.42], [0.93, 0.84, 0.64], grains + smooth_noise(rng, 5, 5) * 0.5)


def _night(rng: np.random.Generator, _: str) -> Array:
    canvas = _mix([0.02, 0.03, 0.12], [0.08, 0.1, 0.26], _vertical_ramp())
    spots = rng.integers(0, SIZE, (2, 14))
    canvas[:, spots[0], spots[1]] = 0.55 + 0.4 * rng.random(14, dtype=np.float32)
    return canvas


def _snow(rng: np.random.Generator, _: str) -> Array:
    return _mix([0.8, 0.86, 0.94], [0.98, 0.99, 1.0], smooth_noise(rng, 6, 4))


def _wood(rng: np.random.Generator, _: str) -> Array:
    x, y = pixel_grid()
    rings = np.sin(y * np.float32(0.9) + 7 * smooth_noise(rng, 4, 3) + x * np.float32(0.03))
    return _mix([0.5, 0.31, 0.15], [0.7, 0.48, 0.27], rings * np.float32(0.4) + np.float32(0.5))


def _street(rng: np.random.Generator, _: str) -> Array:
    return roadside(rng)


PAINTERS: dict[str, Painter] = {
    "plain": _plain,
    "gradient": _gradient,
    "stripes": _stripes,
    "tiles": _tiles,
    "noise": _noise,
    "sky": _sky,
    "grass": _grass,
    "brick": _brick,
    "water": _water,
    "sand": _sand,
    "night": _night,
    "snow": _snow,
    "wood": _wood,
    "street": _street,
}


def paint_background(kind: str, color: str, rng: np.random.Generator) -> Array:
    """A new canvas with this background; `color` matters only to the colored kinds."""
    return np.ascontiguousarray(PAINTERS[kind](rng, color), np.float32)
