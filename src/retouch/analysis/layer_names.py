"""Which layer of a CLIP a tensor belongs to, by its name alone: the tower, and the block in it."""

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple

TowerName = Literal["image", "text"]
TOWERS: tuple[TowerName, TowerName] = ("image", "text")
_IMAGE_PREFIXES = ("vision_model.", "visual", "images.", "prompts.")
_INPUT_LAYER = re.compile(r"embed|conv1|patch|stem|ln_pre|pre_layrnorm")


class _Position(NamedTuple):
    """The position of a tensor in its tower; sorts from input to output."""

    order: int
    path: str
    number: int
    name: str = ""


def layers(tensors: Iterable[str]) -> dict[TowerName, dict[str, list[str]]]:
    """For each tower that has any of them: its layers from input to output, and their tensors.

    A layer is a transformer block, named by its number from 1; or what comes before and after the
    blocks: "in", "out", "prompts". Tensors of neither tower are left out.
    """
    by_position: dict[TowerName, dict[_Position, list[str]]] = {tower: {} for tower in TOWERS}
    for tensor in tensors:
        if not tensor.startswith(("logit_scale", "logit_bias")):
            tower = TOWERS[0] if tensor.startswith(_IMAGE_PREFIXES) else TOWERS[1]
            by_position[tower].setdefault(_position(tensor), []).append(tensor)
    return {tower: _name_layers(parts) for tower, parts in by_position.items() if parts}


def _position(tensor: str) -> _Position:
    if tensor.startswith("prompts."):
        return _Position(0, "", 0, "prompts")
    if block := re.match(r"(.+?)\.(\d+)\.", tensor):
        return _Position(1, block[1], int(block[2]))
    return _Position(0, "", 1, "in") if _INPUT_LAYER.search(tensor) else _Position(2, "", 0, "out")


def _name_layers(by_position: dict[_Position, list[str]]) -> dict[str, list[str]]:
    """Blocks keep their numbers; those of several lists (as in a ResNet) are counted through."""
    single_list = len({position.path for position in by_position if position.order == 1}) == 1
    named, blocks = {}, 0
    for position in sorted(by_position):
        blocks += position.order == 1
        number = position.number + 1 if single_list else blocks
        named[position.name or str(number)] = by_position[position]
    return named
