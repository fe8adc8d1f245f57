"""What can be said of a scene, truly, in many ways.

A caption names some attributes of a scene or all of them, never a wrong one. That is how
captions are found in the wild, and it makes a model learn each word by itself.
"""

import numpy as np

from tools.pictures.backgrounds import COLORED, MATERIALS
from tools.pictures.scenes import COUNTS, POINTING, RELATIONS, Scene, Thing, pick

LIMIT = 14  # words
PHOTO = 0.4  # share of captions that start with "a photo of"
# The last one, "this is", suits a single thing only.
OPENINGS = (
    "", "", "", "a picture of ", "a drawing of ", "an image of ", "a painting of ", "a sketch of ",
    "a photo showing ", "we see ", "this is ",
)  # fmt: skip
PLURALS = {
    "fish": "fish", "person": "people", "leaf": "leaves", "cross": "crosses",
    "hourglass": "hourglasses", "butterfly": "butterflies",
}  # fmt: skip
WHERE: dict[str, tuple[str, ...]] = {
    "top left": ("in the top left corner", "at the top left"),
    "top": ("at the top",),
    "top right": ("in the top right corner", "at the top right"),
    "left": ("on the left", "on the left side"),
    "centre": ("in the centre", "in the middle"),
    "right": ("on the right", "on the right side"),
    "bottom left": ("in the bottom left corner", "at the bottom left"),
    "bottom": ("at the bottom",),
    "bottom right": ("in the bottom right corner", "at the bottom right"),
}
OPPOSITE = dict(zip(RELATIONS, ("below", "above", "right of", "left of"), strict=True))


def with_article(words: str) -> str:
    """Put "a" or "an" in front, by sound: an oval, an hourglass, a yellow oval."""
    sounds_open = words[0] in "aeiou" or words.startswith("hour")
    return f"{'an' if sounds_open else 'a'} {words}"


def plural(noun: str) -> str:
    """The noun for more than one."""
    return PLURALS.get(noun, noun + "s")


def _kept(rng: np.random.Generator, detail: float, word: str) -> list[str]:
    """The word in a list, or an empty list when this caption leaves it out."""
    return [word] if word and rng.random() < detail else []


def _adjectives(thing: Thing, rng: np.random.Generator, detail: float) -> list[str]:
    """What to say before the noun, in the order English wants it."""
    posed = thing.pose if thing.pose in ("tilted", "upside down") else ""
    texture = thing.texture if thing.texture not in ("solid", "bordered") else ""
    words = _kept(rng, detail, "" if thing.size == "medium" else thing.size)
    words += _kept(rng, detail, posed) + _kept(rng, detail, texture)
    return words + _kept(rng, max(detail, 0.7), thing.color)


def _after(thing: Thing, rng: np.random.Generator, detail: float) -> str:
    """What to say after the noun: where an arrow points, a border."""
    if thing.trim:
        return "".join(_kept(rng, detail, f" with {with_article(thing.trim)} border"))
    if thing.pose in POINTING:
        return "".join(_kept(rng, detail, f" pointing {thing.pose}"))
    return ""


def glyph_phrase(thing: Thing, rng: np.random.Generator, detail: float) -> str:
    """Name a glyph: "the letter k in green", "a green 7", "the number 42"."""
    sort = "letter" if thing.name.isalpha() else "digit" if len(thing.name) == 1 else "number"
    if sort == "digit" and rng.random() < 0.3:
        sort = "number"
    words = _adjectives(thing, rng, detail)
    if not words:
        return f"the {sort} {thing.name}"
    if words == [thing.color] and rng.random() < 0.5:
        return f"the {sort} {thing.name} in {thing.color}"
    if sort != "letter" and rng.random() < 0.4:
        return with_article(" ".join([*words, thing.name]))
    return with_article(" ".join([*words, sort, thing.name]))


def phrase(thing: Thing, rng: np.random.Generator, detail: float, count: int = 1) -> str:
    """Name a thing, or a few of the same thing."""
    if thing.kind == "glyph":
        return glyph_phrase(thing, rng, detail)
    words, after = _adjectives(thing, rng, detail), _after(thing, rng, detail)
    if count == 1:
        return with_article(" ".join([*words, thing.name])) + after
    number = _kept(rng, max(detail, 0.85), COUNTS[count])
    return " ".join([*number, *words, plural(thing.name)]) + after


def setting(scene: Scene, rng: np.random.Generator) -> str:
    """Name the background."""
    if scene.background in MATERIALS:
        return pick(rng, MATERIALS[scene.background][0])
    color = scene.background_color
    said = pick(rng, COLORED[scene.background])
    return said.format(color=color, a_color=with_article(color))


def _body(scene: Scene, rng: np.random.Generator, detail: float) -> str:
    """The things of a scene and how they stand to each other."""
    named = [phrase(thing, rng, detail, scene.count) for thing in scene.things]
    if scene.layout == "pair":
        if rng.random() < 0.2:
            return " and ".join(named)
        if rng.random() < 0.5:
            return f"{named[1]} {OPPOSITE[scene.relation]} {named[0]}"
        return f"{named[0]} {scene.relation} {named[1]}"
    if scene.layout == "trio":
        return f"{named[0]}, {named[1]} and {named[2]}"
    if scene.layout in ("inside", "on"):
        if rng.random() < 0.25 and not scene.things[1].trim:
            tail = "inside" if scene.layout == "inside" else "on it"
            return f"{named[1]} with {named[0]} {tail}"
        return f"{named[0]} {scene.layout} {named[1]}"
    return named[0]


def _caption(scene: Scene, rng: np.random.Generator, detail: float) -> str:
    """One attempt at a caption; it may turn out too long."""
    words = [_body(scene, rng, detail)]
    if scene.place and rng.random() < 0.35 * detail:
        words.append(pick(rng, WHERE[scene.place]))
    if rng.random() < 0.3 * detail:
        words.append(setting(scene, rng))
    openings = OPENINGS if scene.layout in ("shape", "glyph") else OPENINGS[:-1]
    opening = "a photo of " if rng.random() < PHOTO else pick(rng, openings)
    return opening + " ".join(words)


def describe(scene: Scene, rng: np.random.Generator) -> str:
    """A true caption of at most LIMIT words."""
    detail = pick(rng, (1.0, 1.0, 0.75, 0.5))
    while True:
        caption = _caption(scene, rng, detail)
        if len(caption.split()) <= LIMIT:
            return caption
        detail *= 0.8
