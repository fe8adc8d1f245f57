"""The contrastive loss on image–prompt pairs, in the paper's two readings and a third.

A batch of N images holds few distinct prompts, so each prompt is encoded once and its feature is
repeated: the same loss and the same gradient, for a fraction of the work.

B: images of a batch, P: distinct prompts, D: features.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from retouch.clip.model import Clip, Tokens

LossName = Literal["contrastive", "label-aware"]
Objective = Literal["summed", "joined"]


@dataclass(frozen=True)
class Batch:
    """Image–prompt pairs of the current task, followed by replayed ones."""

    pixels: Tensor  # [B, H, W, 3], 8 bits
    tokens: Tokens  # of P distinct prompts
    prompt: Tensor  # [B], which of the prompts belongs to each image
    new: int  # how many of the pairs belong to the current task


@dataclass(frozen=True)
class Features:
    """What a loss may look at."""

    images: Tensor  # [B, D]
    texts: Tensor  # [P, D]
    scale: Tensor
    batch: Batch


def contrastive(images: Tensor, texts: Tensor, prompt: Tensor, scale: Tensor) -> Tensor:
    """CLIP's loss: each image must find its own prompt and each prompt its own image.

    Two images of one class share a prompt and still count as each other's negatives, as in the
    pre-training; see `label_aware`.
    """
    logits = scale * images @ texts.T  # [B, P]
    square = logits[:, prompt]  # [B, B]
    own = torch.arange(len(images), device=images.device)
    return (cross_entropy(square, own) + cross_entropy(square.T, own)) / 2


def label_aware(images: Tensor, texts: Tensor, prompt: Tensor, scale: Tensor) -> Tensor:
    """The same, but another image of the same class is no negative: it is left out of the sum."""
    square = (scale * images @ texts.T)[:, prompt]
    own = torch.arange(len(images), device=images.device)
    same = (prompt[:, None] == prompt[None, :]) & (own[:, None] != own[None, :])
    square = square.masked_fill(same, float("-inf"))
    return (cross_entropy(square, own) + cross_entropy(square.T, own)) / 2


LOSSES: dict[LossName, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "contrastive": contrastive,
    "label-aware": label_aware,
}


def pair_loss(features: Features, loss: LossName, objective: Objective) -> Tensor:
    """The loss on new and replayed pairs: Eq. 3's two losses summed, or one joined matrix."""
    of, batch = LOSSES[loss], features.batch
    images, prompt, new = features.images, batch.prompt, batch.new
    if objective == "joined" or new == len(images):
        return of(images, features.texts, prompt, features.scale)
    return of(images[:new], features.texts, prompt[:new], features.scale) + of(
        images[new:], features.texts, prompt[new:], features.scale
    )


def losses(
    clip: Clip, batch: Batch, loss: Callable[[Features], Tensor], micro_batch: int | None = None
) -> Iterator[Tensor]:
    """Losses whose sum is the batch's loss, in value and in gradient.

    Without `micro_batch` there is just one. With it, at most so many images are held with their
    activations at a time, and the result is the same although every image is compared with all:
    first all features without a graph, then the loss's gradient with respect to the features, then
    chunk by chunk a term whose gradient is what the chain rule asks for.
    """
    if micro_batch is None or len(batch.pixels) <= micro_batch:
        features = clip.image_features(batch.pixels), clip.text_features(batch.tokens)
        yield loss(Features(*features, clip.logit_scale, batch))
        return
    chunks = batch.pixels.split(micro_batch)
    with torch.no_grad():
        images = torch.cat([clip.image_features(chunk) for chunk in chunks])
        texts, scale = clip.text_features(batch.tokens), clip.logit_scale.clone()
    leaves = [tensor.requires_grad_() for tensor in (images, texts, scale)]
    value = loss(Features(images, texts, scale, batch))
    slopes = torch.autograd.grad(value, leaves, retain_graph=True, allow_unused=True)
    yield value  # brings the gradient of whatever the loss takes from the weights directly
    yield _term(clip.text_features(batch.tokens), slopes[1])
    yield _term(clip.logit_scale, slopes[2])
    assert slopes[0] is not None
    for chunk, slope in zip(chunks, slopes[0].split(micro_batch), strict=True):
        yield _term(clip.image_features(chunk), slope)


def _term(tensor: Tensor, slope: Tensor | None) -> Tensor:
    """Zero in value, with `slope` as its gradient with respect to `tensor`."""
    term = tensor.sum() * 0 if slope is None else (tensor * slope).sum()
    return term - term.detach()
