"""Which tokens belong to an object: patches of the image, tokens of the prompt."""

from collections.abc import Sequence

from torch import Tensor, nn

from retouch.analysis.annotations import Box
from retouch.clip import Clip, Preprocess
from retouch.clip.text.zero_shot import fill_template
from retouch.errors import UserError

Grid = tuple[int, int]
"""Rows and columns of patches."""


def patch_grid(clip: Clip) -> Grid:
    """The patch grid of the visual tower, from its patch embedding."""
    tower = clip.model.get_submodule(clip.image_prefix.rstrip("."))
    for module in tower.modules():
        if isinstance(module, nn.Conv2d) and module.kernel_size == module.stride:
            height, width = clip.preprocess.size
            return height // module.kernel_size[0], width // module.kernel_size[1]
    raise UserError(
        f"the visual tower of {clip.name} does not cut images into patches, so it is unknown which "
        "tokens belong to an object; choose a CLIP with a ViT"
    )


def box_in_input(box: Box, size: tuple[int, int], preprocess: Preprocess) -> Box:
    """A box of an image of this size, in pixels of the model's input; cropping may cut it."""
    height, width = preprocess.size
    left, top, box_width, box_height = box
    if preprocess.shortest is None:
        scale, offset = (width / size[0], height / size[1]), (0, 0)
    else:
        resized = [int(preprocess.shortest * side / min(size)) for side in size]
        scale = (resized[0] / size[0], resized[1] / size[1])
        excess = (resized[0] - width, resized[1] - height)
        half = (round(e / 2) if preprocess.odd_pixel == "round" else e // 2 for e in excess)
        offset = tuple(half)  # type: ignore[assignment]
    x0, y0 = left * scale[0] - offset[0], top * scale[1] - offset[1]
    x1, y1 = x0 + box_width * scale[0], y0 + box_height * scale[1]
    x0, x1 = (min(max(x, 0.0), width) for x in (x0, x1))
    y0, y1 = (min(max(y, 0.0), height) for y in (y0, y1))
    return x0, y0, x1 - x0, y1 - y0


def patches_in(boxes: Sequence[Box], grid: Grid, preprocess: Preprocess) -> list[int]:
    """The patches that any of these boxes touches, counted row by row."""
    patch_height, patch_width = preprocess.size[0] / grid[0], preprocess.size[1] / grid[1]
    touched = set()
    for left, top, width, height in boxes:
        if width <= 0 or height <= 0:
            continue
        for row in range(grid[0]):
            for column in range(grid[1]):
                x, y = column * patch_width, row * patch_height
                in_columns = x + patch_width > left and left + width > x
                if in_columns and y + patch_height > top and top + height > y:
                    touched.add(row * grid[1] + column)
    return sorted(touched)


def patch_tokens(patches: Sequence[int], grid: Grid, tokens: int) -> list[int]:
    """The token indices of these patches in the visual tower: patches come last, row by row."""
    before = tokens - grid[0] * grid[1]
    if before < 0:
        raise UserError(
            f"the visual tower has {tokens} tokens for {grid[0]}×{grid[1]} patches: it merges or "
            "drops patches before its first block, and tracing needs one token for each"
        )
    return [before + patch for patch in patches]


def name_tokens(clip: Clip, template: str, name: str) -> list[int]:
    """The tokens of the prompt that spell the class name: those that the bare template lacks."""
    texts = (template.replace("{}", "").strip(), *fill_template(template, [name, f"{name} a"]))
    bare, prompt, longer = (_token_ids(clip, text) for text in texts)
    if prompt == longer:
        raise UserError(
            f"the class name {name!r} is too long: in {template!r} it fills the {len(prompt)} "
            "tokens that the model reads, or is cut there; use a shorter name"
        )
    if prompt == bare:
        raise UserError(f"the class name {name!r} gives no tokens; use a name with letters")
    begin, end = _common_prefix(bare, prompt), _common_prefix(bare[::-1], prompt[::-1])
    end = min(end, len(bare) - begin)
    return list(range(begin, len(prompt) - end))


def _token_ids(clip: Clip, text: str) -> list[int]:
    """The tokens of a text, with at most one padding token at the end."""
    first: Tensor = next(iter(clip.tokenize([text]).values()))[0]
    ids: list[int] = first.tolist()
    while len(ids) > 1 and ids[-1] == ids[-2]:
        ids.pop()
    return ids


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """The number of equal tokens at the beginning of both."""
    pairs = list(zip(a, b, strict=False))
    return next((i for i, (x, y) in enumerate(pairs) if x != y), len(pairs))
