"""Draws scenes.

Here the things of a scene get what a caption never mentions: their exact position and rotation,
their shade, the thickness of a pen. Pictures are composed back to front.
"""

import numpy as np

from tools.pictures.backgrounds import paint_background
from tools.pictures.canvas import (
    SIZE,
    Pixels,
    Placement,
    blend,
    checkerboard,
    coverage,
    dots,
    interpolate,
    local_coordinates,
    per_pixel,
    stripes,
    to_uint8,
    window,
)
from tools.pictures.colors import legible_shade, paler, shade
from tools.pictures.effects import photograph
from tools.pictures.glyphs import glyph_field
from tools.pictures.roadside import foliage
from tools.pictures.scenes import PLACES, POINTING, Scene, Thing
from tools.pictures.sdf import Array
from tools.pictures.shapes import FREE, ROOM, shape_field

PATTERNS = {"striped": stripes, "dotted": dots, "checkered": checkerboard}
# Half sizes in pixels (low, high), by layout and size.
RADII: dict[str, dict[str, tuple[float, float]]] = {
    "single": {"small": (8.5, 10.5), "medium": (13.0, 16.0), "large": (22.0, 27.0)},
    "count": {"small": (6.5, 7.5), "medium": (8.8, 10.0), "large": (12.5, 14.5)},
    "pair": {"small": (7.5, 8.5), "medium": (10.5, 12.0), "large": (14.0, 15.5)},
    "trio": {"medium": (10.5, 13.0)},
    "host": {"medium": (17.0, 29.0)},
}


def _uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return low + (high - low) * float(rng.random())


def random_turn(thing: Thing, rng: np.random.Generator) -> float:
    """The rotation of a thing in degrees, as its pose says and its shape allows."""
    wobble = _uniform(rng, -9, 9)
    if thing.name == "arrow":
        corner = 45 + 90 * int(rng.integers(4))
        return wobble + {"up": 0, "right": 90, "down": 180, "left": 270}.get(thing.pose, corner)
    if thing.pose == "upside down":
        return 180 + wobble
    if thing.pose == "tilted":
        return _uniform(rng, 28, 48) * (1 if wobble > 0 else -1)
    if thing.kind == "shape" and thing.name in FREE:
        return _uniform(rng, 0, 360)
    return wobble


Tilt = tuple[float, float]


def random_tilt(rng: np.random.Generator) -> Tilt:
    """The angle of the camera (yaw, pitch): straight on for half of the scenes."""
    if rng.random() < 0.5:
        return 0.0, 0.0
    return _uniform(rng, -38, 38), _uniform(rng, -22, 22)


def place_thing(
    thing: Thing,
    rng: np.random.Generator,
    layout: str,
    x: float,
    y: float,
    jitter: float,
    tilt: Tilt,
) -> Placement:
    """A random placement of a thing near (x, y), in a size for this layout."""
    radius = _uniform(rng, *RADII[layout][thing.size])
    dx, dy = _uniform(rng, -jitter, jitter), _uniform(rng, -jitter, jitter)
    mirror = thing.kind == "shape" and bool(rng.random() < 0.5)
    return Placement(x + dx, y + dy, radius, random_turn(thing, rng), mirror, *tilt)


def _fill_colors(thing: Thing, color: Array, distance: Array, u: Array, v: Array, pixel: float,
             rng: np.random.Generator) -> Array:  # fmt: skip
    """The colors inside a shape: plain, patterned within a rim, or with a border."""
    if thing.texture in PATTERNS:
        pattern = PATTERNS[thing.texture](u, v, pixel) * coverage(distance + 0.09, pixel)
        return per_pixel(color) + per_pixel(paler(color) - color) * pattern
    if thing.texture == "bordered":
        trim = legible_shade(thing.trim, [color], rng)
        return per_pixel(trim) + per_pixel(color - trim) * coverage(distance + 0.2, pixel)
    return color


def draw_thing(canvas: Array, thing: Thing, place: Placement, rng: np.random.Generator) -> None:
    """Draw one thing, in a shade that stands out from the canvas behind it."""
    where = window(place)
    u, v = local_coordinates(place, where)
    pixel = 1 / place.radius
    behind = canvas[:, where[0], where[1]][:, ::3, ::3]
    color = legible_shade(thing.color, [behind.mean((1, 2))], rng)
    if thing.kind == "glyph":
        pen = _uniform(rng, 0.1, 0.17) / (1 + 0.25 * (len(thing.name) > 1)) + 0.35 * pixel
        distance = interpolate(glyph_field(thing.name), u, v) - np.float32(pen)
    else:
        distance = interpolate(shape_field(thing.name), u, v)
    alpha = coverage(distance, pixel)
    if thing.texture == "outlined":
        alpha *= coverage(-distance - np.float32(0.1 + pixel), pixel)
    blend(canvas, where, alpha, _fill_colors(thing, color, distance, u, v, pixel, rng))


def _cells(count: int, size: str, rng: np.random.Generator) -> list[tuple[float, float, float]]:
    """Cells that keep several things apart: x, y and the jitter of each."""
    across = 2 if size == "large" else 3
    step = SIZE / across
    cells = rng.permutation(across * across)[:count].tolist()
    jitter = 1.2 if size != "small" else 2.5
    return [((c % across + 0.5) * step, (c // across + 0.5) * step, jitter) for c in cells]


def _draw_single(canvas: Array, scene: Scene, rng: np.random.Generator) -> None:
    spot = PLACES.index(scene.place or "centre")
    jitter = 2.0 if scene.place else 4.0
    offset = 14.5 if scene.things[0].size == "medium" else 19.0
    x, y = 32 + offset * (spot % 3 - 1), 32 + offset * (spot // 3 - 1)
    place = place_thing(scene.things[0], rng, "single", x, y, jitter, random_tilt(rng))
    draw_thing(canvas, scene.things[0], place, rng)


def _draw_count(canvas: Array, scene: Scene, rng: np.random.Generator) -> None:
    thing, tilt = scene.things[0], random_tilt(rng)
    for x, y, jitter in _cells(scene.count, thing.size, rng):
        draw_thing(canvas, thing, place_thing(thing, rng, "count", x, y, jitter, tilt), rng)


def _draw_pair(canvas: Array, scene: Scene, rng: np.random.Generator) -> None:
    first = {"above": (32, 17), "below": (32, 47), "left of": (17, 32), "right of": (47, 32)}
    x, y = first[scene.relation]
    tilt = random_tilt(rng)
    for thing, (cx, cy) in zip(scene.things, [(x, y), (64 - x, 64 - y)], strict=True):
        draw_thing(canvas, thing, place_thing(thing, rng, "pair", cx, cy, 1.5, tilt), rng)


def _draw_trio(canvas: Array, scene: Scene, rng: np.random.Generator) -> None:
    tilt = random_tilt(rng)
    for thing, (x, y, jitter) in zip(scene.things, _cells(3, "large", rng), strict=True):
        draw_thing(canvas, thing, place_thing(thing, rng, "trio", x, y, jitter * 2, tilt), rng)


def _draw_nested(canvas: Array, scene: Scene, rng: np.random.Generator) -> None:
    guest, host = scene.things
    radius = _uniform(rng, *RADII["host"]["medium"])
    room = max(0.0, 31 - 1.05 * radius)
    x, y = 32 + _uniform(rng, -room, room), 32 + _uniform(rng, -room, room)
    turn, tilt = _uniform(rng, -6, 6), random_tilt(rng)
    if scene.fill:
        hole = Placement(x, y, radius, 0.0, False, *tilt)
        where = window(hole)
        alpha = coverage(np.hypot(*local_coordinates(hole, where)) - np.float32(0.75), 1 / radius)
        blend(canvas, where, alpha, shade(scene.fill, rng))
    draw_thing(canvas, host, Placement(x, y, radius, turn, False, *tilt), rng)
    space, down = ROOM[host.name]
    inner = radius * space * _uniform(rng, 0.88, 1.0)
    lean = random_turn(guest, rng) if guest.pose in POINTING else random_turn(guest, rng) * 0.7
    draw_thing(canvas, guest, Placement(x, y + down * radius, inner, lean, False, *tilt), rng)
    if rng.random() < 0.15:
        angle = _uniform(rng, 0, 6.283)
        edge = x + radius * np.cos(angle), y + radius * np.sin(angle)
        cover, colors = foliage(rng, *edge, radius * _uniform(rng, 0.2, 0.4), angle)
        canvas += (colors - canvas) * cover


def draw_scene(scene: Scene, rng: np.random.Generator) -> Pixels:
    """Draw a scene; what the scene leaves open is random."""
    canvas = paint_background(scene.background, scene.background_color, rng)
    painters = {"count": _draw_count, "pair": _draw_pair, "trio": _draw_trio,
                "inside": _draw_nested, "on": _draw_nested}  # fmt: skip
    painters.get(scene.layout, _draw_single)(canvas, scene, rng)
    photograph(canvas, rng)
    return to_uint8(canvas)
