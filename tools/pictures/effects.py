"""What a camera does to a picture: light, blur and noise.

Every function changes a float canvas (0 to 1) in place. Blur is two small matrix products, the
fastest way to smooth 64 x 64 pixels in numpy.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from tools.pictures.canvas import SIZE, pixel_grid
from tools.pictures.sdf import Array


@cache
def _blur_matrix(tenths: int) -> Array:
    """The matrix that blurs one axis by a Gaussian of this many tenths of a pixel."""
    line = np.arange(SIZE, dtype=np.float32)
    weights = np.exp(-0.5 * ((line[:, None] - line) / (tenths / 10)) ** 2)
    weights[weights < 1e-5] = 0  # denormal numbers make the product ten times slower
    return np.asarray(weights / weights.sum(1, keepdims=True), np.float32)


@cache
def _upsampling_matrix(cells: int) -> Array:
    """The matrix that interpolates `cells` values smoothly over the picture."""
    position = np.linspace(0, cells - 1, SIZE, dtype=np.float32)[:, None]
    weights = np.clip(1 - np.abs(position - np.arange(cells)), 0, 1)
    eased = weights * weights * (3 - 2 * weights)
    return np.asarray(eased, np.float32)


def blur(canvas: Array, across: float, down: float | None = None) -> None:
    """Blur the canvas; different amounts across and down look like motion."""
    down = across if down is None else down
    if down >= 0.3:
        canvas[:] = _blur_matrix(round(down * 10)) @ canvas
    if across >= 0.3:
        canvas[:] = canvas @ _blur_matrix(round(across * 10)).T


def smooth_noise(rng: np.random.Generator, rows: int, columns: int) -> Array:
    """Smooth random patches between 0 and 1, for clouds, grass and dirt."""
    coarse = rng.random((rows, columns), dtype=np.float32)
    return np.asarray(_upsampling_matrix(rows) @ coarse @ _upsampling_matrix(columns).T, np.float32)


class NoiseRecorder(np.random.Generator):
    """A generator that remembers the noise of the last picture that was drawn with it."""

    canvas: Array
    """The picture before the noise."""
    state: Mapping[str, Any]
    """The state of the bit generator before the noise."""
    width: float
    """From the least to the largest noise, where 1 is from black to white."""


def noise(canvas: Array, rng: np.random.Generator, amount: float) -> None:
    """Sensor noise: every value moves by up to about twice `amount`."""
    if isinstance(rng, NoiseRecorder):
        rng.canvas, rng.state, rng.width = canvas.copy(), rng.bit_generator.state, 3.4 * amount
    grain = rng.random(canvas.shape, dtype=np.float32)
    grain -= np.float32(0.5)
    grain *= np.float32(3.4 * amount)
    canvas += grain


def adjust_light(canvas: Array, gain: float, spread: float) -> None:
    """Brightness (`gain`, 1 is unchanged) and contrast (`spread`, 1 is unchanged)."""
    canvas -= np.float32(0.5)
    canvas *= np.float32(spread)
    canvas += np.float32(0.5)
    canvas *= np.float32(gain)


def light_gradient(canvas: Array, rng: np.random.Generator, amount: float) -> None:
    """Light that fades from one side of the picture to the other."""
    x, y = pixel_grid()
    angle = float(rng.random()) * 2 * np.pi
    ramp = x * np.float32(np.cos(angle)) + y * np.float32(np.sin(angle))
    ramp -= ramp.mean()
    canvas *= 1 + ramp * np.float32(amount / SIZE)


def random_hour(rng: np.random.Generator) -> str:
    """The light that a picture is taken in; often plain daylight."""
    hours = ("day", "day", "day", "dusk", "night", "glare", "shadow")
    return hours[int(rng.integers(len(hours)))]


def _tint(canvas: Array, red: float, green: float, blue: float) -> None:
    canvas *= np.array([red, green, blue], np.float32)[:, None, None]


def _shadow_edge(rng: np.random.Generator, px: float, py: float, softness: float) -> Array:
    """0 on one side of a line near a point, 1 on the other."""
    x, y = pixel_grid()
    angle = float(rng.uniform(0, 6.283))
    across = (x - px) * np.float32(np.cos(angle)) + (y - py) * np.float32(np.sin(angle))
    return np.clip(across / np.float32(softness) + np.float32(rng.uniform(-0.2, 1.2)), 0, 1)


def apply_daylight(
    canvas: Array, hour: str, px: float, py: float, rng: np.random.Generator
) -> None:
    """Light the picture as at this hour; a shadow's edge falls near (px, py)."""
    if hour == "night":
        gain = float(rng.uniform(0.65, 0.95))
        _tint(canvas, gain, gain * 0.94, gain * 0.8)
    elif hour == "dusk":
        gain = float(rng.uniform(0.5, 0.75))
        warm = float(rng.uniform(0.0, 0.22))
        _tint(canvas, gain * (1 + warm), gain, gain * (1.12 - warm))
    elif hour == "shadow":
        canvas *= 1 - _shadow_edge(rng, px, py, 3.0) * np.float32(rng.uniform(0.35, 0.6))
    elif hour == "glare":
        x, y = pixel_grid()
        cx, cy = rng.uniform(0, 64, 2)
        spot = np.exp(-((x - np.float32(cx)) ** 2 + (y - np.float32(cy)) ** 2) / np.float32(500))
        canvas += (1 - canvas) * (spot * np.float32(rng.uniform(0.3, 0.65)))
    light_gradient(canvas, rng, 0.4 * float(rng.random()))


def apply_camera(canvas: Array, blurring: float, rng: np.random.Generator) -> None:
    """Focus, motion, exposure and noise; `blurring` (1 is a lot) is less for small things."""
    chance = rng.random(3).tolist()
    if chance[0] < 0.35:
        blur(canvas, (0.5 + 0.8 * chance[1]) * blurring)
    elif chance[0] < 0.6:
        long, short = (0.8 + 1.3 * chance[1]) * blurring, 0.4 * blurring
        blur(canvas, *((long, short) if chance[2] < 0.6 else (short, long)))
    adjust_light(canvas, float(rng.uniform(0.82, 1.12)), float(rng.uniform(0.75, 1.1)))
    noise(canvas, rng, 0.06 * float(rng.random()) ** 1.5)


def photograph(canvas: Array, rng: np.random.Generator) -> None:
    """The effects on a picture of the world: outdoor light on half of them, else a bit of each."""
    if rng.random() < 0.5:
        apply_daylight(canvas, random_hour(rng), 32, 32, rng)
        apply_camera(canvas, 0.6, rng)
        return
    chance = rng.random(6).tolist()
    if chance[0] < 0.5:
        light_gradient(canvas, rng, 0.35 * chance[1])
    if chance[2] < 0.45:
        blur(canvas, 0.4 + chance[2])
    adjust_light(canvas, 0.86 + 0.22 * chance[3], 0.8 + 0.3 * chance[4])
    noise(canvas, rng, 0.07 * chance[5] ** 1.5)
