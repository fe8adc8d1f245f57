"""Traffic signs by the road: the new classes a model is to learn.

A sign is a flat plate seen in perspective: for every pixel, the point of the plate that is seen
there is computed. Added to that is what makes photographs of signs hard: odd light, faded paint,
dirt, blur, noise, and leaves in the way, though never over more than a quarter of the sign.
"""

from dataclasses import dataclass

import numpy as np

from tools.pictures.canvas import (
    SIZE,
    Pixels,
    Placement,
    coverage,
    interpolate,
    local_coordinates,
    per_pixel,
    pixel_grid,
    to_uint8,
)
from tools.pictures.effects import apply_camera, apply_daylight, random_hour, smooth_noise
from tools.pictures.roadside import bar, foliage, roadside
from tools.pictures.sdf import Array
from tools.pictures.sign_faces import SIGNS, face_field

__all__ = ["CLASSES", "Shot", "SignClass", "photograph_sign", "picture"]

MAX_OCCLUSION = 0.25
WHOLE = (slice(0, SIZE), slice(0, SIZE))
PAINT: dict[str, tuple[float, float, float]] = {
    "red": (0.78, 0.07, 0.1),
    "white": (0.95, 0.95, 0.94),
    "blue": (0.05, 0.27, 0.66),
    "yellow": (0.98, 0.77, 0.06),
    "black": (0.07, 0.07, 0.08),
    "green": (0.08, 0.58, 0.28),
}


@dataclass(frozen=True)
class SignClass:
    """A class of traffic sign; `f"a photo of {name}"` is its prompt."""

    name: str
    description: str


CLASSES: list[SignClass] = [SignClass(name, description) for name, description, _ in SIGNS]


@dataclass(frozen=True)
class Shot:
    """A photograph of a sign, and how much of the sign can be seen in it (0 to 1)."""

    picture: Pixels
    visible: float


def _random_view(rng: np.random.Generator) -> Placement:
    """A moderate view of a sign that fills 45 to 90 % of the picture and stays within it."""
    radius = 16 + 12 * float(rng.random()) ** 0.8
    room = max(0.0, 31 - 1.1 * radius)  # a rotated plate reaches a little beyond its radius
    x, y = (32 + room * rng.uniform(-1, 1, 2)).tolist()
    yaw, pitch = float(rng.uniform(-38, 38)), float(rng.uniform(-22, 22))
    return Placement(x, y, radius, float(rng.normal(0, 5)), yaw=yaw, pitch=pitch)


def _paint(rng: np.random.Generator) -> dict[str, Array]:
    """The paints of one sign: each sign's differ a little, and the sun fades them all."""
    fade = 0.5 * float(rng.random()) ** 2
    dull = np.float32(rng.uniform(0.55, 0.8))
    paints: dict[str, Array] = {}
    for name, base in PAINT.items():
        color = np.array(base, np.float32) + rng.uniform(-0.05, 0.05, 3).astype(np.float32)
        paints[name] = color + (dull - color) * np.float32(fade)
    return paints


def _plate(index: int, view: Placement, rng: np.random.Generator) -> tuple[Array, Array]:
    """The sign alone: its color at every pixel, and how much of the pixel it covers."""
    grid, colors = face_field(index)
    distance = interpolate(grid, *local_coordinates(view, WHOLE))
    alphas = coverage(distance, 1 / (0.92 * view.radius)).transpose(2, 0, 1)
    paints = _paint(rng)
    canvas = per_pixel(paints[colors[0]]) * np.ones_like(alphas[0])
    for color, alpha in zip(colors[1:], alphas[1:], strict=True):
        canvas += (per_pixel(paints[color]) - canvas) * alpha
    if rng.random() < 0.5:
        dirt = np.clip(smooth_noise(rng, 9, 9) * 2 - np.float32(1.0), 0, 1)
        canvas *= 1 - dirt * np.float32(0.5 * rng.random())
    return canvas, alphas[0]


def _pole(canvas: Array, view: Placement, rng: np.random.Generator) -> None:
    """The pole of the sign, from behind the plate to the bottom of the picture."""
    x, y = pixel_grid()
    half = 0.06 * view.radius + 0.6
    across = x - np.float32(view.x) - np.float32(np.radians(view.turn)) * (view.y - y)
    post = np.clip(np.float32(half + 0.5) - np.abs(across), 0, 1) * (y > view.y)
    tone = np.float32(rng.uniform(0.35, 0.7)) - across * np.float32(0.04)
    canvas += (tone - canvas) * post


def _occlude(canvas: Array, plate: Array, view: Placement, rng: np.random.Generator) -> float:
    """Put something in front of the sign; return the share of the sign that is still visible.

    It comes from the edge, where it hides the least of what the sign says. If it hides too much
    it is made smaller, and left out if that is not enough.
    """
    kind = foliage if rng.random() < 0.7 else bar
    angle, reach = float(rng.uniform(0, 6.283)), view.radius * float(rng.uniform(0.3, 0.7))
    x = view.x + view.radius * 0.95 * float(np.cos(angle))
    y = view.y + view.radius * 0.95 * float(np.sin(angle))
    for _ in range(3):
        cover, colors = kind(rng, x, y, reach, angle)
        hidden = float((cover * plate).sum() / plate.sum())
        if hidden <= MAX_OCCLUSION:
            canvas += (colors - canvas) * cover
            return 1 - hidden
        reach *= 0.6
    return 1.0


def _darken(canvas: Array, rng: np.random.Generator) -> None:
    """Darken everything but the sign, which reflects the headlights."""
    gain = np.float32(rng.uniform(0.12, 0.3))
    canvas *= per_pixel(gain * np.array([0.8, 0.85, 1.1], np.float32))


def photograph_sign(index: int, rng: np.random.Generator) -> Shot:
    """Photograph a sign of class `CLASSES[index]` somewhere by a road."""
    view = _random_view(rng)
    hour = random_hour(rng)
    canvas = roadside(rng)
    if rng.random() < 0.6:
        _pole(canvas, view, rng)
    if hour == "night":
        _darken(canvas, rng)
    colors, plate = _plate(index, view, rng)
    canvas += (colors - canvas) * plate
    visible = _occlude(canvas, plate, view, rng) if rng.random() < 0.35 else 1.0
    apply_daylight(canvas, hour, view.x, view.y, rng)
    apply_camera(canvas, view.radius / 28, rng)
    return Shot(to_uint8(canvas), visible)


def picture(index: int, rng: np.random.Generator) -> Pixels:
    """A picture of a sign of class `CLASSES[index]`."""
    return photograph_sign(index, rng).picture
