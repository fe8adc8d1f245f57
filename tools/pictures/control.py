"""The control classes: combinations the world kept back.

Each class is one held-out combination. Its pictures vary in everything its name leaves
open, except that no picture of one class may be a true picture of another: the striped
cloud is never pink, because "a pink cloud" is a class of its own.
"""

from dataclasses import dataclass

import numpy as np

from tools.pictures.canvas import Pixels
from tools.pictures.captions import plural, with_article
from tools.pictures.colors import COLORS, clash
from tools.pictures.compose import draw_scene
from tools.pictures.held_out import (
    COLOR_GLYPH,
    COLOR_SHAPE,
    COUNT_SHAPE,
    HELD_OUT,
    INSIDE,
    ON,
    TEXTURE_SHAPE,
    Combination,
    combinations,
)
from tools.pictures.scenes import (
    COUNTS,
    Scene,
    Thing,
    any_pose,
    pick,
    several,
    single,
    textures,
    with_background,
)


@dataclass(frozen=True)
class ControlClass:
    """A class of the control set; `f"a photo of {name}"` is its prompt."""

    name: str
    combination: Combination
    colors: tuple[str, str] = ("", "")  # of guest and host, for "inside" and "on"


def _glyph_name(glyph: str) -> str:
    return f"the {'letter' if glyph.isalpha() else 'digit'} {glyph}"


def _nested(layout: str, row: tuple[str, str, str, str]) -> ControlClass:
    """ "a white star inside a blue ring" and the like."""
    color, guest, host_color, host = row
    noun = f"letter {guest}" if len(guest) == 1 and guest.isalpha() else guest
    words = [with_article(f"{color} {noun}"), layout, with_article(f"{host_color} {host}")]
    return ControlClass(" ".join(words), (layout, guest, host), (color, host_color))


def _classes() -> list[ControlClass]:
    """All control classes, kind after kind, in the order of the tables."""
    found: list[ControlClass] = []
    for kind, table in (("color", COLOR_SHAPE), ("texture", TEXTURE_SHAPE)):
        for word, shapes in table.items():
            found += [ControlClass(with_article(f"{word} {s}"), (kind, word, s)) for s in shapes]
    for count, shapes in COUNT_SHAPE.items():
        word = COUNTS[count]
        found += [ControlClass(f"{word} {plural(s)}", ("count", word, s)) for s in shapes]
    for color, glyphs in COLOR_GLYPH.items():
        found += [ControlClass(f"{_glyph_name(g)} in {color}", ("glyph", color, g)) for g in glyphs]
    found += [_nested("inside", row) for row in INSIDE]
    return found + [_nested("on", row) for row in ON]


CONTROL: list[ControlClass] = _classes()


def _shape(name: str, color: str, texture: str, rng: np.random.Generator) -> Thing:
    """A shape with what the class fixes; empty strings are filled at random."""
    color = color or pick(rng, COLORS)
    trim = ""
    if texture == "bordered":
        trim = pick(rng, [other for other in COLORS if not clash(color, other)])
    return Thing(name, color, texture=texture, trim=trim, pose=any_pose(name, rng))


def _attempt(chosen: ControlClass, rng: np.random.Generator) -> Scene:
    """A scene that shows the class, though perhaps another class as well."""
    kind, one, other = chosen.combination
    if kind == "color":
        texture = "solid" if rng.random() < 0.7 else pick(rng, textures(other))
        return single(_shape(other, one, texture, rng), rng)
    if kind == "texture":
        return single(_shape(other, "", one, rng), rng)
    if kind == "count":
        texture = "solid" if rng.random() < 0.7 else pick(rng, textures(other))
        count = next(number for number, word in COUNTS.items() if word == one)
        return several(_shape(other, "", texture, rng), count, rng)
    if kind == "glyph":
        return single(Thing(other, one, kind="glyph"), rng)
    guest = Thing(one, chosen.colors[0], kind="glyph" if kind == "on" else "shape")
    outlined = kind == "inside" and other != "ring"
    host = Thing(other, chosen.colors[1], texture="outlined" if outlined else "solid")
    return Scene(kind, (guest, host), "")


def control_scene(index: int, rng: np.random.Generator) -> Scene:
    """A scene of one control class and of no other."""
    chosen = CONTROL[index]
    while True:
        scene = _attempt(chosen, rng)
        if combinations(scene) & HELD_OUT == {chosen.combination}:
            return with_background(scene, rng)


def control_picture(index: int, rng: np.random.Generator) -> Pixels:
    """A picture of the control class `CONTROL[index]`."""
    return draw_scene(control_scene(index, rng), rng)
