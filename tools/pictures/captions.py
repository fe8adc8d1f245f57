"""Captions: true descriptions of a scene, in many wordings.

A caption names some or all attributes of a scene, never a wrong one. Real captions are like that
too, and it makes a model learn each word on its own.
"""

import numpy as np

from tools.pictures.backgrounds import COLORED, MATERIALS
from tools.pictures.scenes import COUNTS, POINTING, RELATIONS, Scene, Thing, pick

LIMIT = 14  # words per caption
PHOTO = 0.4  # share of captions that start with "a photo of"
# The last one, "this is", fits a single thing only.
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
    """Put "a" or "an" in front, depending on the sound: an oval, an hourglass, a yellow oval."""
    starts_with_vowel = words[0] in "aeiou" or words.startswith("hour")
    return f"{'an' if starts_with_vowel else 'a'} {words}"


def plural(noun: str) -> str:
    """The plural of a noun."""
    return PLURALS.get(noun, noun + "s")


def _maybe(rng: np.random.Generator, detail: float, word: str) -> list[str]:
    """The word in a list, with probability `detail`; else an empty list."""
    return [word] if word and rng.random() < detail else []


def _adjectives(thing: Thing, rng: np.random.Generator, detail: float) -> list[str]:
    """The adjectives before the noun, in the order of English."""
    pose = thing.pose if thing.pose in ("tilted", "upside down") else ""
    texture = thing.texture if thing.texture not in ("solid", "bordered") else ""
    words = _maybe(rng, detail, "" if thing.size == "medium" else thing.size)
    words += _maybe(rng, detail, pose) + _maybe(rng, detail, texture)
    return words + _maybe(rng, max(detail, 0.7), thing.color)


def _suffix(thing: Thing, rng: np.random.Generator, detail: float) -> str:
    """What follows the noun: where an arrow points, a border."""
    if thing.trim:
        return "".join(_maybe(rng, detail, f" with {with_article(thing.trim)} border"))
    if thing.pose in POINTING:
        return "".join(_maybe(rng, detail, f" pointing {thing.pose}"))
    return ""


def glyph_phrase(thing: Thing, rng: np.random.Generator, detail: float) -> str:
    """Name a glyph: "the letter k in green", "a green 7", "the number 42"."""
    noun = "letter" if thing.name.isalpha() else "digit" if len(thing.name) == 1 else "number"
    if noun == "digit" and rng.random() < 0.3:
        noun = "number"
    words = _adjectives(thing, rng, detail)
    if not words:
        return f"the {noun} {thing.name}"
    if words == [thing.color] and rng.random() < 0.5:
        return f"the {noun} {thing.name} in {thing.color}"
    if noun != "letter" and rng.random() < 0.4:
        return with_article(" ".join([*words, thing.name]))
    return with_article(" ".join([*words, noun, thing.name]))


def phrase(thing: Thing, rng: np.random.Generator, detail: float, count: int = 1) -> str:
    """Name a thing, or several of the same thing."""
    if thing.kind == "glyph":
        return glyph_phrase(thing, rng, detail)
    words, suffix = _adjectives(thing, rng, detail), _suffix(thing, rng, detail)
    if count == 1:
        return with_article(" ".join([*words, thing.name])) + suffix
    number = _maybe(rng, max(detail, 0.85), COUNTS[count])
    return " ".join([*number, *words, plural(thing.name)]) + suffix


def setting(scene: Scene, rng: np.random.Generator) -> str:
    """Name the background."""
    if scene.background in MATERIALS:
        return pick(rng, MATERIALS[scene.background][0])
    color = scene.background_color
    template = pick(rng, COLORED[scene.background])
    return template.format(color=color, a_color=with_article(color))


def _body(scene: Scene, rng: np.random.Generator, detail: float) -> str:
    """The things of a scene and their relation."""
    phrases = [phrase(thing, rng, detail, scene.count) for thing in scene.things]
    if scene.layout == "pair":
        if rng.random() < 0.2:
            return " and ".join(phrases)
        if rng.random() < 0.5:
            return f"{phrases[1]} {OPPOSITE[scene.relation]} {phrases[0]}"
        return f"{phrases[0]} {scene.relation} {phrases[1]}"
    if scene.layout == "trio":
        return f"{phrases[0]}, {phrases[1]} and {phrases[2]}"
    if scene.layout in ("inside", "on"):
        if rng.random() < 0.25 and not scene.things[1].trim:
            tail = "inside" if scene.layout == "inside" else "on it"
            return f"{phrases[1]} with {phrases[0]} {tail}"
        return f"{phrases[0]} {scene.layout} {phrases[1]}"
    return phrases[0]


def _caption(scene: Scene, rng: np.random.Generator, detail: float) -> str:
    """One attempt at a caption; it may be too long."""
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
