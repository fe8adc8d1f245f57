"""What the world never shows: the combinations held out for the control set.

Every color, shape, texture, count and glyph is common in the world, but these pairs of them never
occur together. A model that recognizes them combines what it knows, and a model that no longer does
has forgotten something; that is what the control set measures. The tables are written out, not
sampled, so they cannot change with a library.
"""

from tools.pictures.scenes import COUNTS, Scene, Thing

# (kind, one side, other side), e.g. ("color", "red", "bell") or ("inside", "cup", "ring")
Combination = tuple[str, str, str]

COLOR_SHAPE: dict[str, list[str]] = {
    "red": ["drop", "umbrella", "bell", "flag"],
    "orange": ["cross", "fish", "mushroom", "bottle"],
    "yellow": ["car", "person", "apple", "anchor"],
    "green": ["rectangle", "arrow", "house", "cup"],
    "cyan": ["diamond", "pentagon", "gear", "tree"],
    "blue": ["oval", "star", "hourglass", "hammer"],
    "purple": ["semicircle", "spiral", "sun", "butterfly"],
    "pink": ["circle", "heart", "crescent", "cloud"],
    "brown": ["square", "triangle", "key"],
    "black": ["hexagon", "trapezoid", "crown"],
    "white": ["flower", "boat", "leaf"],
    "grey": ["ring", "bolt", "bird"],
}
TEXTURE_SHAPE: dict[str, list[str]] = {
    "striped": ["cloud", "cup", "drop", "oval", "rectangle", "triangle"],
    "dotted": ["circle", "diamond", "heart", "hexagon", "mushroom", "pentagon"],
    "checkered": ["apple", "bell", "butterfly", "house", "square", "star"],
    "outlined": ["crown", "hourglass", "semicircle", "trapezoid", "tree", "umbrella"],
}
COUNT_SHAPE: dict[int, list[str]] = {
    2: ["bird", "bottle", "circle", "flag", "spiral"],
    3: ["car", "cloud", "cup", "diamond", "key"],
    4: ["bolt", "crown", "fish", "oval", "tree"],
    5: ["flower", "heart", "hourglass", "sun", "triangle"],
}
COLOR_GLYPH: dict[str, str] = {
    "red": "x17",
    "orange": "cio",
    "yellow": "y48",
    "green": "emv",
    "cyan": "jks",
    "blue": "dlz",
    "purple": "gpq",
    "pink": "afn",
    "brown": "bw5",
    "black": "ru9",
    "white": "t06",
    "grey": "h23",
}
# The pair of names is held out in every color; the control class shows it in these.
INSIDE: list[tuple[str, str, str, str]] = [
    ("yellow", "cup", "brown", "ring"),
    ("black", "leaf", "pink", "ring"),
    ("orange", "spiral", "cyan", "ring"),
    ("white", "oval", "orange", "ring"),
    ("orange", "drop", "black", "ring"),
    ("orange", "crescent", "cyan", "square"),
    ("black", "gear", "yellow", "hexagon"),
    ("cyan", "cross", "white", "pentagon"),
    ("yellow", "bolt", "green", "triangle"),
    ("pink", "flower", "brown", "diamond"),
    ("yellow", "bird", "cyan", "heart"),
    ("red", "tree", "cyan", "oval"),
    ("purple", "anchor", "white", "cloud"),
    ("green", "ring", "blue", "apple"),
    ("yellow", "butterfly", "purple", "rectangle"),
]
ON: list[tuple[str, str, str, str]] = [
    ("red", "5", "yellow", "circle"),
    ("orange", "a", "white", "circle"),
    ("purple", "4", "yellow", "circle"),
    ("orange", "b", "white", "square"),
    ("brown", "6", "white", "square"),
    ("black", "j", "green", "hexagon"),
    ("yellow", "2", "cyan", "hexagon"),
    ("green", "k", "red", "pentagon"),
    ("orange", "0", "cyan", "triangle"),
    ("yellow", "c", "purple", "diamond"),
    ("red", "9", "purple", "heart"),
    ("green", "u", "orange", "oval"),
    ("yellow", "7", "cyan", "cloud"),
    ("black", "x", "white", "apple"),
    ("white", "8", "purple", "rectangle"),
]

HELD_OUT: frozenset[Combination] = frozenset(
    [("color", color, shape) for color, names in COLOR_SHAPE.items() for shape in names]
    + [("texture", texture, shape) for texture, names in TEXTURE_SHAPE.items() for shape in names]
    + [("count", COUNTS[count], shape) for count, names in COUNT_SHAPE.items() for shape in names]
    + [("glyph", color, glyph) for color, glyphs in COLOR_GLYPH.items() for glyph in glyphs]
    + [("inside", guest, host) for _, guest, _, host in INSIDE]
    + [("on", guest, host) for _, guest, _, host in ON]
)


def _thing_combinations(thing: Thing) -> set[Combination]:
    """The combinations that one thing shows; a number shows each of its digits."""
    if thing.kind == "glyph":
        return {("glyph", thing.color, character) for character in thing.name}
    colored = {("color", color, thing.name) for color in thing.colors}
    return colored | {("texture", thing.texture, thing.name)}


def combinations(scene: Scene) -> set[Combination]:
    """Every combination of two attributes that can be seen in a scene."""
    pairs: set[Combination] = set().union(*[_thing_combinations(thing) for thing in scene.things])
    if scene.count > 1:
        pairs.add(("count", COUNTS[scene.count], scene.things[0].name))
    if scene.layout in ("inside", "on"):
        guest, host = scene.things
        names = guest.name if guest.kind == "glyph" else [guest.name]
        pairs |= {(scene.layout, name, host.name) for name in names}
    return pairs


def resembles_sign(scene: Scene) -> bool:
    """Whether a scene resembles a traffic sign; the world must not show the new classes."""
    if any((t.name, t.color, t.trim) == ("diamond", "yellow", "white") for t in scene.things):
        return True
    if scene.layout not in ("inside", "on"):
        return False
    guest, host = scene.things
    number = guest.kind == "glyph" and len(guest.name) > 1
    if "red" in host.colors and host.name in ("ring", "circle", "triangle"):
        return number or guest.name in ("rectangle", "person", "car", "semicircle", "bolt")
    if host.color == "blue" and host.name in ("circle", "square", "rectangle"):
        return guest.name in ("p", "arrow", "person")
    return False


def admissible(scene: Scene) -> bool:
    """Whether the world may show this scene."""
    return not resembles_sign(scene) and HELD_OUT.isdisjoint(combinations(scene))
