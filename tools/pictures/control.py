"""The control classes: combinations held out of the world.

Each class is one held-out combination. Its pictures vary in everything that its name leaves open,
except that no picture of one class may also show another: the striped cloud is never pink, because
"a pink cloud" is a class too.
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
    pick,
    random_pose,
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
    colors: tuple[str, str] = ("", "")  # of guest and host, for the layouts "inside" and "on"


def _glyph_name(glyph: str) -> str:
    return f"the {'letter' if glyph.isalpha() else 'digit'} {glyph}"


def _nested(layout: str, row: tuple[str, str, str, str]) -> ControlClass:
    """ "a white star inside a blue ring" and the like."""
    color, guest, host_color, host = row
    noun = f"letter {guest}" if len(guest) == 1 and guest.isalpha() else guest
    words = [with_article(f"{color} {noun}"), layout, with_article(f"{host_color} {host}")]
    return ControlClass(" ".join(words), (layout, guest, host), (color, host_color))


def _classes() -> list[ControlClass]:
    """All control classes, one kind after the other, in the order of the tables."""
    classes: list[ControlClass] = []
    for kind, table in (("color", COLOR_SHAPE), ("texture", TEXTURE_SHAPE)):
        for word, shapes in table.items():
            classes += [ControlClass(with_article(f"{word} {s}"), (kind, word, s)) for s in shapes]
    for count, shapes in COUNT_SHAPE.items():
        word = COUNTS[count]
        classes += [ControlClass(f"{word} {plural(s)}", ("count", word, s)) for s in shapes]
    for color, glyphs in COLOR_GLYPH.items():
        classes += [
            ControlClass(f"{_glyph_name(g)} in {color}", ("glyph", color, g)) for g in glyphs
        ]
    classes += [_nested("inside", row) for row in INSIDE]
    return classes + [_nested("on", row) for row in ON]


CONTROL: list[ControlClass] = _classes()


def _shape(name: str, color: str, texture: str, rng: np.random.Generator) -> Thing:
    """A shape; its color is random if empty."""
    color = color or pick(rng, COLORS)
    trim = ""
    if texture == "bordered":
        trim = pick(rng, [other for other in COLORS if not clash(color, other)])
    return Thing(name, color, texture=texture, trim=trim, pose=random_pose(name, rng))


def _attempt(control: ControlClass, rng: np.random.Generator) -> Scene:
    """A scene that shows the class, and perhaps another one as well."""
    kind, one, other = control.combination
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
    guest = Thing(one, control.colors[0], kind="glyph" if kind == "on" else "shape")
    outlined = kind == "inside" and other != "ring"
    host = Thing(other, control.colors[1], texture="outlined" if outlined else "solid")
    return Scene(kind, (guest, host), "")


def control_scene(index: int, rng: np.random.Generator) -> Scene:
    """A scene of one control class and of no other."""
    control = CONTROL[index]
    while True:
        scene = _attempt(control, rng)
        if combinations(scene) & HELD_OUT == {control.combination}:
            return with_background(scene, rng)


def control_picture(index: int, rng: np.random.Generator) -> Pixels:
    """A picture of the control class `CONTROL[index]`."""
    return draw_scene(control_scene(index, rng), rng)
