"""CLIP's loss on image–prompt pairs: a softmax over the batch, in its forms.

A batch of N images holds few distinct prompts, so each prompt is encoded once and its feature is
repeated. `clip.sigmoid_loss` has the same forms for models with a logit bias.

B: images in a batch, b: images of this rank, P: distinct prompts, D: feature dimension.
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy


def contrastive(
    images: Tensor,
    texts: Tensor,
    prompt: Tensor,
    scale: Tensor,
    pairs: slice | None = None,
    smoothing: float = 0.0,
) -> Tensor:
    """CLIP's loss: each image must match its own prompt, and each prompt its own image.

    Two images of one class share a prompt and still count as each other's negatives, as in
    pre-training; see `label_aware`. With `pairs`, only the contribution of those pairs. With label
    `smoothing`, that share of the target is spread over all columns.
    """
    per_image, per_text, target = _logits(images, texts, prompt, scale, pairs)
    return _symmetric_cross_entropy(per_image, per_text, target, pairs, smoothing)


def label_aware(
    images: Tensor,
    texts: Tensor,
    prompt: Tensor,
    scale: Tensor,
    pairs: slice | None = None,
    smoothing: float = 0.0,
) -> Tensor:
    """`contrastive`, with other images of the same class left out of the negatives."""
    per_image, per_text, target = _logits(images, texts, prompt, scale, pairs)
    column = torch.arange(len(images), device=images.device)
    same_class = prompt[target][:, None] == prompt[None, :]
    masked = same_class & (target[:, None] != column[None, :])
    per_image, per_text = (
        logits.masked_fill(masked, float("-inf")) for logits in (per_image, per_text)
    )
    return _symmetric_cross_entropy(per_image, per_text, target, pairs, smoothing)


def class_cross_entropy(
    images: Tensor,
    texts: Tensor,
    prompt: Tensor,
    scale: Tensor,
    pairs: slice | None = None,
    smoothing: float = 0.0,
) -> Tensor:
    """Classification: each image must match its own prompt among all prompts of the batch."""
    rows = slice(None) if pairs is None else pairs
    logits = scale * images[rows] @ texts.T
    return _sum_cross_entropy(logits, prompt[rows], smoothing) / len(images)


def _logits(
    images: Tensor, texts: Tensor, prompt: Tensor, scale: Tensor, pairs: slice | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits per image and per text [b, B], and the column of each pair [b].

    For a subset of the pairs, the full [B, B] matrix is never built.
    """
    target = torch.arange(len(images), device=images.device)
    if pairs is None:
        logits = (scale * images @ texts.T)[:, prompt]
        return logits, logits.T, target
    per_image = (scale * images[pairs] @ texts.T)[:, prompt]
    per_text = scale * texts[prompt[pairs]] @ images.T
    return per_image, per_text, target[pairs]


def _symmetric_cross_entropy(
    per_image: Tensor, per_text: Tensor, target: Tensor, pairs: slice | None, smoothing: float
) -> Tensor:
    """The mean over all pairs, or the contribution of `pairs` to it."""
    if pairs is None and not smoothing:
        return (cross_entropy(per_image, target) + cross_entropy(per_text, target)) / 2
    total = sum(_sum_cross_entropy(part, target, smoothing) for part in (per_image, per_text))
    return total / (2 * per_image.shape[1])  # type: ignore[return-value]


def _sum_cross_entropy(logits: Tensor, target: Tensor, smoothing: float) -> Tensor:
    """The cross-entropy summed over rows; smoothing leaves out columns that are masked."""
    sharp = cross_entropy(logits, target, reduction="sum")
    if not smoothing:
        return sharp
    possible = logits.isfinite()
    log_probabilities = logits.log_softmax(dim=1).masked_fill(~possible, 0.0)
    uniform = -(log_probabilities.sum(dim=1) / possible.sum(dim=1)).sum()
    return (1 - smoothing) * sharp + smoothing * uniform
