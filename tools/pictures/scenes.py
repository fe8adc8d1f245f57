"""Scenes: what is in a picture, before anything is drawn or described.

Choosing a scene, drawing it and describing it are three separate steps, so captions can be made by
the million without drawing, and rules on what may occur are rules on plain data. What a caption
cannot mention (the exact position, a small rotation, the shade of red) is not in the scene; it is
random when the scene is drawn.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from tools.pictures.backgrounds import COLORED, MATERIALS
from tools.pictures.colors import COLORS, clash
from tools.pictures.glyphs import DIGITS, LETTERS
from tools.pictures.shapes import ROOM, SHAPES, SLENDER, TEXTURED, UPRIGHT

T = TypeVar("T")

TEXTURES = ("solid", "striped", "dotted", "checkered", "outlined", "bordered")
SIZES = ("small", "medium", "large")
COUNTS = {2: "two", 3: "three", 4: "four", 5: "five"}
PLACES = (
    "top left", "top", "top right",
    "left", "centre", "right",
    "bottom left", "bottom", "bottom right",
)  # fmt: skip
RELATIONS = ("above", "below", "left of", "right of")
POINTING = ("up", "down", "left", "right")

LAYOUTS = {"shape": 28, "glyph": 20, "count": 14, "pair": 12, "trio": 6, "inside": 9, "on": 11}
_WEIGHTED_LAYOUTS = [name for name, share in LAYOUTS.items() for _ in range(share)]
_SHAPES = tuple(SHAPES)
_MATERIALS, _COLORED = tuple(MATERIALS), tuple(COLORED)


@dataclass(frozen=True)
class Thing:
    """One object: a shape, or a glyph (a letter, a digit or a two-digit number)."""

    name: str
    color: str
    kind: str = "shape"
    texture: str = "solid"
    trim: str = ""  # the border's color, when texture is "bordered"
    size: str = "medium"
    pose: str = ""  # "tilted" or "upside down"; where an arrow points

    @property
    def colors(self) -> frozenset[str]:
        """Every color that a caption might name."""
        return frozenset({self.color, self.trim} - {""})


@dataclass(frozen=True)
class Scene:
    """Things, their arrangement, and the background."""

    layout: str
    things: tuple[Thing, ...]
    background: str
    background_color: str = ""
    count: int = 1
    place: str = ""
    relation: str = ""
    fill: str = ""  # the color in the hole of a ring, if any


def pick(rng: np.random.Generator, options: Sequence[T]) -> T:
    """One of the options (numpy's `choice` is twenty times slower)."""
    return options[int(rng.random() * len(options))]


def textures(shape: str) -> list[str]:
    """The textures that are possible for a shape."""
    if shape not in TEXTURED:
        return ["solid"]
    unsuited = {"outlined"} if shape == "circle" else {"bordered"} if shape in SLENDER else set()
    return [name for name in TEXTURES if name not in unsuited]


def random_shape(
    rng: np.random.Generator, without: Sequence[str] = (), plain: float = 0.5
) -> Thing:
    """A shape in a color; solid with probability `plain`, else with a random texture."""
    name = pick(rng, [shape for shape in _SHAPES if shape not in without])
    texture = "solid" if rng.random() < plain else pick(rng, textures(name))
    color = pick(rng, COLORS)
    trim = ""
    if texture == "bordered":
        trim = pick(rng, [other for other in COLORS if not clash(color, other)])
    return Thing(name, color, texture=texture, trim=trim, pose=random_pose(name, rng))


def random_pose(name: str, rng: np.random.Generator) -> str:
    """The pose of a shape: mostly upright."""
    if name == "arrow":
        return pick(rng, (*POINTING, ""))
    if name in UPRIGHT and rng.random() < 0.2:
        return pick(rng, ("tilted", "upside down"))
    return ""


def random_glyph(rng: np.random.Generator) -> Thing:
    """A letter, a digit or a two-digit number in a color."""
    chance = rng.random()
    text = pick(rng, LETTERS) if chance < 0.55 else pick(rng, DIGITS)
    if chance > 0.8:
        text = str(10 + int(rng.random() * 90))
    return Thing(text, pick(rng, COLORS), kind="glyph")


def _with_random_size(
    thing: Thing, rng: np.random.Generator, sizes: Sequence[str] = SIZES
) -> Thing:
    return replace(thing, size=pick(rng, sizes))


def single(thing: Thing, rng: np.random.Generator) -> Scene:
    """One thing alone, in any size and place."""
    thing = _with_random_size(thing, rng)
    place = "" if thing.size == "large" else pick(rng, PLACES)
    return Scene(thing.kind, (thing,), "", place=place)


def several(thing: Thing, count: int, rng: np.random.Generator) -> Scene:
    """The same thing several times; patterns need space, and five large things do not fit."""
    sizes = ["medium"] + ["small"] * (thing.texture == "solid") + ["large"] * (count < 5)
    return Scene("count", (_with_random_size(thing, rng, sizes),), "", count=count)


def _pair(rng: np.random.Generator) -> Scene:
    one = random_shape(rng, plain=0.7)
    other = random_shape(rng, without=[one.name], plain=0.7)
    if rng.random() < 0.15:
        other = random_glyph(rng)
    return Scene("pair", (_with_random_size(one, rng), _with_random_size(other, rng)), "",
                 relation=pick(rng, RELATIONS))  # fmt: skip


def _trio(rng: np.random.Generator) -> Scene:
    things: list[Thing] = []
    for _ in range(3):
        things.append(random_shape(rng, without=[thing.name for thing in things], plain=0.8))
    return Scene("trio", tuple(things), "")


def _guest(rng: np.random.Generator, host: Thing, glyphs: float) -> Thing:
    """What sits inside or on `host`, in a color that stands out from it."""
    guest = (
        random_glyph(rng) if rng.random() < glyphs else random_shape(rng, [host.name], plain=1.0)
    )
    colors = [name for name in COLORS if not clash(name, host.color)]
    pose = guest.pose if guest.name == "arrow" else ""
    return replace(guest, color=pick(rng, colors), pose=pose)


def _inside(rng: np.random.Generator) -> Scene:
    name = "ring" if rng.random() < 0.4 else pick(rng, [s for s in ROOM if s != "circle"])
    host = Thing(name, pick(rng, COLORS), texture="solid" if name == "ring" else "outlined")
    guest = _guest(rng, host, glyphs=0.3)
    fill = ""
    if name == "ring" and rng.random() < 0.5:
        used = (guest.color, host.color)
        fill = pick(rng, [c for c in COLORS if not any(clash(c, other) for other in used)])
    return Scene("inside", (guest, host), "", fill=fill)


def _on(rng: np.random.Generator) -> Scene:
    name = pick(rng, [shape for shape in ROOM if shape != "ring"])
    host = Thing(name, pick(rng, COLORS))
    if rng.random() < 0.25:
        trims = [other for other in COLORS if not clash(host.color, other)]
        host = replace(host, texture="bordered", trim=pick(rng, trims))
    return Scene("on", (_guest(rng, host, glyphs=0.65), host), "")


def random_scene(layout: str, rng: np.random.Generator) -> Scene:
    """A random scene of this layout, without a background; it may be inadmissible."""
    if layout in ("shape", "glyph"):
        return single(random_shape(rng) if layout == "shape" else random_glyph(rng), rng)
    if layout == "count":
        return several(random_shape(rng, plain=0.6), 2 + int(rng.random() * 4), rng)
    makers = {"pair": _pair, "trio": _trio, "inside": _inside, "on": _on}
    return makers[layout](rng)


def random_layout(rng: np.random.Generator) -> str:
    """A layout, with the frequencies of LAYOUTS."""
    return pick(rng, _WEIGHTED_LAYOUTS)


def exposed(scene: Scene) -> frozenset[str]:
    """The colors next to the background, which must differ from it."""
    visible = scene.things[1:] if scene.layout in ("inside", "on") else scene.things
    if scene.layout == "inside" and not scene.fill:
        visible = scene.things
    return frozenset().union(*[thing.colors for thing in visible])


def with_background(scene: Scene, rng: np.random.Generator) -> Scene:
    """The scene on a random background on which every color stands out."""
    colors = exposed(scene)
    kinds = [kind for kind in _MATERIALS if not MATERIALS[kind][1] & colors]
    chance = rng.random()
    if "street" in kinds and chance < 0.25:
        return replace(scene, background="street")
    if kinds and chance < 0.55:
        return replace(scene, background=pick(rng, kinds))
    possible = [name for name in COLORS if not any(clash(name, color) for color in colors)]
    return replace(scene, background=pick(rng, _COLORED), background_color=pick(rng, possible))
