"""Where in a CLIP a tensor lies, by its name alone: in which tower, and in which block of it."""

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple

Tower = Literal["image", "text"]
TOWERS: tuple[Tower, Tower] = ("image", "text")
_IMAGES = ("vision_model.", "visual", "images.", "prompts.")
_FIRST = re.compile(r"embed|conv1|patch|stem|ln_pre|pre_layrnorm")


class _Spot(NamedTuple):
    """The place of a tensor in its tower; sorted from input to output."""

    order: int
    path: str
    number: int
    name: str = ""


def layers(tensors: Iterable[str]) -> dict[Tower, dict[str, list[str]]]:
    """For each tower that has any: its layers from input to output, and the tensors of each.

    A layer is a transformer block, called by its number from 1; or what lies before and behind the
    blocks: "in", "out", "prompts". What is of neither tower is left out.
    """
    found: dict[Tower, dict[_Spot, list[str]]] = {tower: {} for tower in TOWERS}
    for tensor in tensors:
        if not tensor.startswith(("logit_scale", "logit_bias")):
            tower = TOWERS[0] if tensor.startswith(_IMAGES) else TOWERS[1]
            found[tower].setdefault(_spot(tensor), []).append(tensor)
    return {tower: _named(spots) for tower, spots in found.items() if spots}


def _spot(tensor: str) -> _Spot:
    if tensor.startswith("prompts."):
        return _Spot(0, "", 0, "prompts")
    if inside := re.match(r"(.+?)\.(\d+)\.", tensor):
        return _Spot(1, inside[1], int(inside[2]))
    return _Spot(0, "", 1, "in") if _FIRST.search(tensor) else _Spot(2, "", 0, "out")


def _named(spots: dict[_Spot, list[str]]) -> dict[str, list[str]]:
    """Numbered as they are called; or one after the other, where there are several rows of them."""
    single = len({spot.path for spot in spots if spot.order == 1}) == 1
    found, met = {}, 0
    for spot in sorted(spots):
        met += spot.order == 1
        found[spot.name or str(spot.number + 1 if single else met)] = spots[spot]
    return found
