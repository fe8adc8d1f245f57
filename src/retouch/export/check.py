"""Verify an export: loaded again, it must give the same features as the model it came from."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from retouch.clip import Clip
from retouch.clip.finite import check_features, refused_if_not_finite
from retouch.clip.hf.model import HuggingFaceClip
from retouch.clip.open_clip.model import OpenClip
from retouch.errors import UserError
from retouch.export.card import escape_markdown
from retouch.export.export_model import ExportModel

log = logging.getLogger("retouch")

TOLERANCE = 1e-5
"""Between two libraries' normalized features in float32, which differ by the order of sums."""

_NUM_IMAGES, _MAX_PROMPTS = 8, 64
_COMMON_PROMPTS = ["a photo of a cat", "two people on a red bicycle, at night", "car no. 7"]


@dataclass(frozen=True)
class Sample:
    """Images (noise of several contrasts, so that every pixel counts) and prompts to compare."""

    pixels: Tensor
    prompts: list[str]


def sample(model: ExportModel) -> Sample:
    """Prompts of the learned classes (up to a few dozen), common ones, and random images."""
    rng = torch.Generator().manual_seed(0)
    noise = torch.rand(_NUM_IMAGES, *model.clip.preprocess.size, 3, generator=rng) - 0.5
    contrast = torch.linspace(0.1, 1, _NUM_IMAGES).view(-1, 1, 1, 1)
    learned = [each.prompts[0] for each in model.classes[:_MAX_PROMPTS]]
    pixels = ((0.5 + noise * contrast) * 255).to(torch.uint8)
    return Sample(pixels, [*learned, *_COMMON_PROMPTS])


def drop_differing_prompts(
    original: Sample,
    tokens: Sequence[Sequence[int]],
    other_tokens: Sequence[Sequence[int]],
    other: str,
) -> tuple[Sample, list[str]]:
    """The sample without prompts that another tokenizer encodes differently, and a note on these.

    Tokenizers clean unusual characters in different ways; but they must agree on common prompts.
    """
    pairs = zip(original.prompts, tokens, other_tokens, strict=True)
    differing = [prompt for prompt, a, b in pairs if list(a) != list(b)]
    if not differing:
        return original, []
    if set(differing) & set(_COMMON_PROMPTS):
        raise UserError(
            f"this model's tokenizer does more than that of {other} can: {differing[-1]!r} is "
            "tokenized differently. Export the model for the library it came from"
        )
    note = f"{len(differing)} prompts of the learned classes are tokenized differently by {other}"
    log.warning("%s, such as %r; their features differ there", note, differing[0])
    example = escape_markdown(differing[0])
    prompts = [prompt for prompt in original.prompts if prompt not in differing]
    return (
        Sample(original.pixels, prompts),
        [f"{note}, such as “{example}”; their features differ there."],
    )


def tokens_in_both(
    prompts: Sequence[str], a: Clip, b: Clip
) -> tuple[list[list[int]], list[list[int]]]:
    """Each prompt's tokens in transformers, and in open_clip without its padding."""
    hf, open_clip = (a, b) if isinstance(a, HuggingFaceClip) else (b, a)
    assert isinstance(hf, HuggingFaceClip)
    assert isinstance(open_clip, OpenClip)
    hf_tokens = [hf.tokenize([prompt])["input_ids"][0].tolist() for prompt in prompts]
    padded = [open_clip.tokenizer([prompt])[0].tolist() for prompt in prompts]
    open_clip_tokens = [
        tokens[: len(unpadded)] if len(set(tokens[len(unpadded) :])) < 2 else tokens
        for unpadded, tokens in zip(hf_tokens, padded, strict=True)
    ]
    return hf_tokens, open_clip_tokens


@torch.no_grad()
def features(clip: Clip, inputs: Sample) -> tuple[Tensor, Tensor]:
    """The features of the images and of the prompts; refused if they are not finite."""
    images = clip.image_features(inputs.pixels)
    texts = clip.text_features(clip.tokenize(inputs.prompts))
    with refused_if_not_finite(clip):
        check_features((images, texts))
    return images, texts


def max_difference(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    """The largest difference between two sets of features; infinite if their shapes differ.

    It is NaN if a feature is: NaN is not the same as anything.
    """
    pairs = list(zip(a, b, strict=True))
    if any(x.shape != y.shape for x, y in pairs):
        return float("inf")
    # Not Python's `max`, which skips a NaN that does not come first.
    return float(torch.stack([(x - y).abs().max() for x, y in pairs]).max())


def refuse_difference(difference: float, tolerance: float, library: str) -> float:
    """Refuse an export that is not the model that was learned. NaN is refused as well."""
    if not difference <= tolerance:
        raise UserError(
            f"the model as loaded by {library} gives other features than this one: they differ by "
            f"{difference:.1g}, and {tolerance:.0e} is allowed. Nothing was written; please report "
            "it, with the model's name"
        )
    return difference
