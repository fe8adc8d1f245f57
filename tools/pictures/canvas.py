"""The canvas: coordinates, anti-aliased edges, textures and contact sheets.

Shapes (see `sdf`) are too slow to be evaluated for each of millions of pictures, so each is
evaluated once, on a grid of CELLS x CELLS points, and cached. Drawing interpolates that grid at the
pixels' coordinates, rotated, scaled or in perspective, and the cost no longer depends on how
intricate the shape is.

A canvas is a float32 array (3, SIZE, SIZE) from 0 to 1: channels come first because numpy is
several times faster that way. Only `to_uint8` makes the usual (SIZE, SIZE, 3) bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from tools.pictures.sdf import Array, Shape

SIZE = 64
CELLS = 128
REACH = 1.2

Pixels = npt.NDArray[np.uint8]
Window = tuple[slice, slice]


@dataclass(frozen=True)
class Placement:
    """Where a shape is drawn: center and half size in pixels, rotations in degrees."""

    x: float
    y: float
    radius: float
    turn: float = 0.0
    mirror: bool = False
    yaw: float = 0.0  # rotation away from the camera, sideways
    pitch: float = 0.0  # and upwards


def distance_field(shape: Shape) -> Array:
    """Evaluate a shape on the grid; `interpolate` reads from the result."""
    line = np.linspace(-REACH, REACH, CELLS, dtype=np.float32)
    x, y = np.meshgrid(line, line)
    return np.ascontiguousarray(shape(x, y), np.float32)


def interpolate(grid: Array, u: Array, v: Array) -> Array:
    """The distances at (u, v), interpolated between the four nearest grid points.

    `grid` is (CELLS, CELLS), or (CELLS, CELLS, layers) to read several shapes at once.
    """
    step = np.float32((CELLS - 1) / (2 * REACH))
    top = np.float32(CELLS - 1.001)
    x, y = np.clip((u + REACH) * step, 0, top), np.clip((v + REACH) * step, 0, top)
    column, row = x.astype(np.intp), y.astype(np.intp)
    fx, fy = x - column.astype(np.float32), y - row.astype(np.float32)
    if grid.ndim == 3:
        fx, fy = fx[..., None], fy[..., None]
    flat: Array = grid.reshape(CELLS * CELLS, *grid.shape[2:])
    corner = row * CELLS + column
    upper: Array = flat.take(corner, 0)
    lower: Array = flat.take(corner + CELLS, 0)
    upper += (flat.take(corner + 1, 0) - upper) * fx
    lower += (flat.take(corner + CELLS + 1, 0) - lower) * fx
    upper += (lower - upper) * fy
    return upper


@cache
def pixel_grid() -> tuple[Array, Array]:
    """The x and y of every pixel's center, each (SIZE, SIZE)."""
    line = np.arange(SIZE, dtype=np.float32) + np.float32(0.5)
    x, y = np.meshgrid(line, line)
    return x, y


def window(place: Placement) -> Window:
    """The rows and columns that a shape placed here can touch."""
    reach = place.radius * REACH + 1

    def span(middle: float) -> slice:
        return slice(max(0, int(middle - reach)), max(0, min(SIZE, int(middle + reach) + 1)))

    return span(place.y), span(place.x)


def local_coordinates(place: Placement, where: Window) -> tuple[Array, Array]:
    """The pixels of a window in the shape's coordinates (-1 to 1)."""
    x, y = pixel_grid()
    if place.yaw or place.pitch:
        u, v = _in_perspective(place, x[where], y[where])
        return (-u if place.mirror else u), v
    turn = np.radians(place.turn)
    cos, sin = np.float32(np.cos(turn) / place.radius), np.float32(np.sin(turn) / place.radius)
    px, py = x[0, where[1]] - np.float32(place.x), y[where[0], :1] - np.float32(place.y)
    u, v = cos * px + sin * py, cos * py - sin * px
    return (-u if place.mirror else u), v


def _in_perspective(place: Placement, x: Array, y: Array) -> tuple[Array, Array]:
    """For every pixel, the point (u, v) of the shape's plane that is seen there.

    The plane is rotated in space and seen with slight perspective; this is the inverse of the
    3 x 3 homography from the plane to the picture.
    """
    yaw, pitch, roll = np.radians([place.yaw, place.pitch, place.turn])
    cy, sy, cp, sp = np.cos(yaw), np.sin(yaw), np.cos(pitch), np.sin(pitch)
    cr, sr = np.cos(roll), np.sin(roll)
    tilt = np.array([[cy, sy * sp], [0, cp], [-sy, cy * sp]])
    flat, depth = np.array([[cr, -sr], [sr, cr]]) @ tilt[:2], 0.28 * tilt[2]
    matrix = np.empty((3, 3))
    matrix[0] = [*(place.radius * flat[0] + place.x * depth), place.x]
    matrix[1] = [*(place.radius * flat[1] + place.y * depth), place.y]
    matrix[2] = [*depth, 1]
    h = np.linalg.inv(matrix).astype(np.float32)
    scale = 1 / (h[2, 0] * x + h[2, 1] * y + h[2, 2])
    u, v = h[0, 0] * x + h[0, 1] * y + h[0, 2], h[1, 0] * x + h[1, 1] * y + h[1, 2]
    return u * scale, v * scale


def coverage(distance: Array, pixel: float | Array) -> Array:
    """How much of each pixel lies inside; `pixel` is a pixel's size in the shape's units."""
    return np.clip(0.5 - distance / np.asarray(pixel, np.float32), 0, 1)


def fraction(values: Array) -> Array:
    """The fractional part (numpy's `%` takes five times as long)."""
    return values - np.floor(values)


def blend(canvas: Array, where: Window, alpha: Array, color: Array) -> None:
    """Blend a color (or a canvas of colors) into a window of the canvas, in place."""
    view = canvas[:, where[0], where[1]]
    view += (per_pixel(color) - view) * alpha


def per_pixel(color: Array) -> Array:
    """A color with axes to broadcast over a canvas; a canvas of colors is returned as it is."""
    return color[:, None, None] if color.ndim == 1 else color


def stripes(u: Array, v: Array, pixel: float) -> Array:
    """The share of each pixel in the paler half of a pattern of slanted stripes."""
    phase = np.abs(fraction((u + v * np.float32(0.6)) * np.float32(1.7)) - np.float32(0.5))
    return coverage(phase - np.float32(0.2), pixel * 1.9)


def dots(u: Array, v: Array, pixel: float) -> Array:
    """The share of each pixel in a pattern of round dots."""
    pitch = 0.56
    x, y = (
        fraction(u / pitch) - np.float32(0.5),
        fraction(v / pitch) - np.float32(0.5),
    )
    return coverage(np.hypot(x, y) - np.float32(0.33), pixel / pitch)


def checkerboard(u: Array, v: Array, pixel: float) -> Array:
    """The share of each pixel in the paler squares of a chessboard."""

    def side(values: Array) -> Array:
        phase = np.abs(fraction(values * np.float32(1.15) + np.float32(0.25)) - np.float32(0.5))
        edge: Array = (phase - np.float32(0.25)) * np.float32(0.5 / pixel)
        return np.clip(edge, -0.5, 0.5)

    return np.float32(0.5) + np.float32(2) * side(u) * side(v)


def to_uint8(canvas: Array) -> Pixels:
    """The canvas (3, SIZE, SIZE), 0 to 1, as the bytes of a picture (SIZE, SIZE, 3)."""
    scaled = canvas * np.float32(255)
    scaled += np.float32(0.5)
    np.clip(scaled, 0, 255, out=scaled)
    return np.ascontiguousarray(scaled.astype(np.uint8).transpose(1, 2, 0))


def contact_sheet(pictures: Sequence[Pixels], columns: int, scale: int = 2) -> Pixels:
    """Tile pictures into one contact sheet, row by row, each pixel `scale` pixels wide."""
    gap = 2
    cell = SIZE * scale + gap
    rows = -(-len(pictures) // columns)
    board = np.full((rows * cell + gap, columns * cell + gap, 3), 255, np.uint8)
    for number, picture in enumerate(pictures):
        top, left = gap + number // columns * cell, gap + number % columns * cell
        large = picture.repeat(scale, 0).repeat(scale, 1)
        board[top : top + large.shape[0], left : left + large.shape[1]] = large
    return board
