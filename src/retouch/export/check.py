"""What was written is loaded again and must say the same as the model it came from."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from retouch.clip import Clip
from retouch.clip.hf import HuggingFaceClip
from retouch.clip.open_clip import OpenClip
from retouch.clip.zero_shot import fill_template
from retouch.errors import UserError
from retouch.export.export_model import ExportModel
from retouch.export.markdown import literal

log = logging.getLogger("retouch")

TOLERANCE = 1e-5
"""Between two libraries' features of length one, in float32: the order of sums, no more."""

_PICTURES, _PROMPTS = 8, 64
_ANY = ["a photo of a cat", "two people on a red bicycle, at night", "car no. 7"]


@dataclass(frozen=True)
class Sample:
    """Pictures (noise of several contrasts: every pixel counts) and prompts to compare by."""

    pixels: Tensor
    prompts: list[str]


def sample(subject: ExportModel) -> Sample:
    """All that was learned, up to some dozens of prompts, and some that were not."""
    rng = torch.Generator().manual_seed(0)
    noise = torch.rand(_PICTURES, *subject.clip.preprocess.size, 3, generator=rng) - 0.5
    contrast = torch.linspace(0.1, 1, _PICTURES).view(-1, 1, 1, 1)
    learned = fill_template(subject.templates[0], subject.classes[:_PROMPTS])
    return Sample(((0.5 + noise * contrast) * 255).to(torch.uint8), [*learned, *_ANY])


def read_alike(
    some: Sample, ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]], where: str
) -> tuple[Sample, list[str]]:
    """The sample without the prompts that another tokenizer reads otherwise, and a line on these.

    Tokenizers clean odd letters away, each in its own manner; that they agree on ordinary prompts
    is a must.
    """
    pairs = zip(some.prompts, ours, theirs, strict=True)
    odd = [prompt for prompt, a, b in pairs if list(a) != list(b)]
    if not odd:
        return some, []
    if set(odd) & set(_ANY):
        raise UserError(
            f"this model's tokenizer does more than that of {where} can: {odd[-1]!r} comes out "
            "otherwise. Export the model for the library it came from"
        )
    line = f"{len(odd)} prompts of the learned classes are read otherwise by {where}, such as "
    log.warning("%s%r; their features differ there", line, odd[0])
    kept = [prompt for prompt in some.prompts if prompt not in odd]
    return Sample(some.pixels, kept), [f"{line}“{literal(odd[0])}”; their features differ there."]


def readings(prompts: Sequence[str], a: Clip, b: Clip) -> tuple[list[list[int]], list[list[int]]]:
    """Each prompt's tokens in transformers, and in open_clip without what fills it up."""
    hf, other = (a, b) if isinstance(a, HuggingFaceClip) else (b, a)
    assert isinstance(hf, HuggingFaceClip)
    assert isinstance(other, OpenClip)
    ours = [hf.tokenize([prompt])["input_ids"][0].tolist() for prompt in prompts]
    full = [other.tokenizer([prompt])[0].tolist() for prompt in prompts]
    pairs = list(zip(ours, full, strict=True))
    return ours, [all_[: len(o)] if len(set(all_[len(o) :])) < 2 else all_ for o, all_ in pairs]


@torch.no_grad()
def features(clip: Clip, some: Sample) -> tuple[Tensor, Tensor]:
    """Of the pictures and of the prompts, a prompt's as it is when it stands alone."""
    return clip.image_features(some.pixels), clip.text_features(clip.tokenize(some.prompts))


def difference(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    """The largest one between two sets of features; infinite where they have other shapes."""
    pairs = list(zip(ours, theirs, strict=True))
    if any(a.shape != b.shape for a, b in pairs):
        return float("inf")
    return max(float((a - b).abs().max()) for a, b in pairs)


def refuse_other(found: float, tolerance: float, where: str) -> float:
    """Nothing leaves that is not the model that was learned. NaN is refused as well."""
    if not found <= tolerance:
        raise UserError(
            f"the model as {where} sees it gives other features than this one: they differ by "
            f"{found:.1g}, and {tolerance:.0e} is allowed. Nothing was written; please report it, "
            "with the model's name"
        )
    return found
