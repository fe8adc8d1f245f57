"""What belongs to an object: patches of the image, tokens of the prompt."""

from collections.abc import Sequence

from torch import Tensor, nn

from retouch.analysis.objects import Box
from retouch.clip import Clip, Preprocess
from retouch.clip.zero_shot import fill_template
from retouch.errors import UserError

Grid = tuple[int, int]
"""Rows and columns of patches."""


def grid_of(clip: Clip) -> Grid:
    """The patches of the visual tower, by the first layer that looks at pixels."""
    inside = clip.image_prefix.rstrip(".")
    for module in clip.model.get_submodule(inside).modules():
        if isinstance(module, nn.Conv2d) and module.kernel_size == module.stride:
            high, wide = clip.preprocess.size
            return high // module.kernel_size[0], wide // module.kernel_size[1]
    raise UserError(
        f"the visual tower of {clip.name} does not cut images into patches, so there is no telling "
        "which tokens belong to an object; choose a CLIP with a ViT"
    )


def seen(box: Box, size: tuple[int, int], pixels: Preprocess) -> Box:
    """Where a box of a picture of this size lies in what the model sees; it may lose parts."""
    high, wide = pixels.size
    left, top, across, down = box
    if pixels.shortest is None:
        scale, shift = (wide / size[0], high / size[1]), (0, 0)
    else:
        whole = [int(pixels.shortest * side / min(size)) for side in size]
        scale = (whole[0] / size[0], whole[1] / size[1])
        spare = (whole[0] - wide, whole[1] - high)
        half = (round(s / 2) if pixels.odd_pixel == "round" else s // 2 for s in spare)
        shift = tuple(half)  # type: ignore[assignment]
    x0, y0 = left * scale[0] - shift[0], top * scale[1] - shift[1]
    x1, y1 = x0 + across * scale[0], y0 + down * scale[1]
    x0, x1 = (min(max(x, 0.0), wide) for x in (x0, x1))
    y0, y1 = (min(max(y, 0.0), high) for y in (y0, y1))
    return x0, y0, x1 - x0, y1 - y0


def patches_in(boxes: Sequence[Box], grid: Grid, pixels: Preprocess) -> list[int]:
    """The patches that any of these boxes touches, counted row by row."""
    tall, wide = pixels.size[0] / grid[0], pixels.size[1] / grid[1]
    found = set()
    for left, top, across, down in boxes:
        if across <= 0 or down <= 0:
            continue
        for row in range(grid[0]):
            for column in range(grid[1]):
                x, y = column * wide, row * tall
                beside = x + wide <= left or left + across <= x
                if not beside and y + tall > top and top + down > y:
                    found.add(row * grid[1] + column)
    return sorted(found)


def patch_tokens(patches: Sequence[int], grid: Grid, tokens: int) -> list[int]:
    """Which tokens of the visual tower these patches are: they stand last, row by row."""
    before = tokens - grid[0] * grid[1]
    if before < 0:
        raise UserError(
            f"the visual tower has {tokens} tokens for {grid[0]}×{grid[1]} patches: it joins or "
            "drops patches before its first block, and tracing needs one token for each"
        )
    return [before + patch for patch in patches]


def name_tokens(clip: Clip, template: str, name: str) -> list[int]:
    """Which tokens of the prompt say the name: those that the template alone does not have."""
    texts = (template.replace("{}", "").strip(), *fill_template(template, [name, f"{name} a"]))
    without, whole, longer = (_ids(clip, text) for text in texts)
    if whole == longer:
        raise UserError(
            f"the class name {name!r} is too long: in {template!r} it fills the {len(whole)} "
            "tokens that the model reads, or is cut there; use a shorter name"
        )
    if whole == without:
        raise UserError(f"the class name {name!r} gives no tokens; use a name of letters")
    begin, end = _shared(without, whole), _shared(without[::-1], whole[::-1])
    end = min(end, len(without) - begin)
    return list(range(begin, len(whole) - end))


def _ids(clip: Clip, text: str) -> list[int]:
    """The tokens of a text, with at most one of the padding behind it."""
    ids: Tensor = next(iter(clip.tokenize([text]).values()))[0]
    found: list[int] = ids.tolist()
    while len(found) > 1 and found[-1] == found[-2]:
        found.pop()
    return found


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """With how many equal tokens both begin."""
    pairs = list(zip(one, other, strict=False))
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
