"""The loss on image–prompt pairs, in two readings of the paper, and the classification loss.

The loss follows the model: CLIP's softmax over the batch, or SigLIP's sigmoid, for which each pair
matches or does not by itself, where the model has a logit bias. Such a model was pre-trained with
it, and is ruined by a softmax, which ignores the bias and with it the level of the scores.

A batch of N images holds few distinct prompts, so each prompt is encoded once and its feature is
repeated: the same loss and the same gradient at a fraction of the cost. In the sigmoid's forms, a
score counts as often as its prompt occurs in the batch.

With several ranks (`retouch.distributed`), each rank encodes its part of the images and prompts,
and the features are gathered on all of them. The loss of the batch is the *mean* over ranks of what
a loss function returns: a loss of the whole batch returns the same value on every rank, `pair_loss`
returns the contribution of this rank's pairs. Gradients are summed over ranks.

B: images in a batch, b: images of this rank, P: distinct prompts, D: feature dimension.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import mul
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot, softplus

from retouch.clip.encode import (
    chunks,
    encode_rank_images,
    encode_rank_pairs,
    encode_rank_texts,
    fits,
    prompt_chunks,
)
from retouch.clip.frozen.keyed_images import Pixels
from retouch.clip.model import Clip
from retouch.clip.text.tokens import Tokens, num_prompts
from retouch.distributed import collectives


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


def sigmoid(
    images: Tensor,
    texts: Tensor,
    prompt: Tensor,
    scale: Tensor,
    bias: Tensor,
    pairs: slice | None = None,
) -> Tensor:
    """SigLIP's loss: an image matches its own text, and none of the other texts of the batch.

    Two images of one class share a prompt and still count as each other's negatives, as in
    pre-training; see `sigmoid_label_aware`. With `pairs`, only the contribution of those pairs.
    """
    logits, own, counts = _scores(images, texts, prompt, scale, bias, pairs)
    return _cross_entropy(logits, own, counts - own, len(prompt))


def sigmoid_label_aware(
    images: Tensor,
    texts: Tensor,
    prompt: Tensor,
    scale: Tensor,
    bias: Tensor,
    pairs: slice | None = None,
) -> Tensor:
    """`sigmoid`, where the texts of other images of the same class match as well."""
    logits, own, counts = _scores(images, texts, prompt, scale, bias, pairs)
    return _cross_entropy(logits, own * counts, (1 - own) * counts, len(prompt))


def sigmoid_classification(
    images: Tensor,
    texts: Tensor,
    prompt: Tensor,
    scale: Tensor,
    bias: Tensor,
    pairs: slice | None = None,
) -> Tensor:
    """Each image against all prompts of the batch, each of which counts once."""
    logits, own, _ = _scores(images, texts, prompt, scale, bias, pairs)
    return _cross_entropy(logits, own, 1 - own, len(prompt))


def classification(logits: Tensor, target: Tensor, bias: Tensor | None) -> Tensor:
    """The cross-entropy over classes; with a logit bias, the binary one of each class.

    Args:
        logits: Similarities times the logit scale, [N, C].
        target: The class of each row.
        bias: The model's logit bias, or None.
    """
    if bias is None:
        return cross_entropy(logits, target)
    own = one_hot(target, logits.shape[1]).to(logits.dtype)
    return _cross_entropy(logits + bias, own, 1 - own, len(logits))


def _scores(
    images: Tensor,
    texts: Tensor,
    prompt: Tensor,
    scale: Tensor,
    bias: Tensor,
    pairs: slice | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores [b, P], which of them are an image's own prompt [b, P], and prompts' counts [P]."""
    rows = slice(None) if pairs is None else pairs
    logits = scale * images[rows] @ texts.T + bias
    # Not `bincount`, which makes a GPU wait.
    is_prompt = prompt[:, None] == torch.arange(len(texts), device=prompt.device)
    own = is_prompt.to(logits.dtype)
    return logits, own[rows], own.sum(dim=0)


def _cross_entropy(logits: Tensor, positives: Tensor, negatives: Tensor, count: int) -> Tensor:
    """The binary cross-entropy of all pairs, per image; with how many pairs each score stands for.

    −log σ(x) is softplus(−x), and −log(1 − σ(x)) is softplus(x).
    """
    return (positives * softplus(-logits) + negatives * softplus(logits)).sum() / count


LossName = Literal["contrastive", "label-aware", "cross-entropy"]
Objective = Literal["summed", "joined"]


@dataclass(frozen=True)
class Batch:
    """Image–prompt pairs of the current task, followed by replayed ones."""

    pixels: Pixels
    """This rank's images: 8-bit pixels [b, H, W, 3], or images by key."""
    tokens: Tokens
    """The P distinct prompts."""
    prompt: Tensor
    """[B]: the index of each image's prompt."""
    new: int
    """How many of the pairs, from the first, belong to the current task."""
    answers: Tensor | None = None
    """The prompts that an image is classified among, ascending, where not all of them: the others
    are for a regularizer alone.
    """


@dataclass(frozen=True)
class Features:
    """The input of a loss function."""

    images: Tensor
    """Normalized features of the images [B, D]."""
    texts: Tensor
    """Normalized features of the distinct prompts [P, D]."""
    scale: Tensor
    """The logit scale, which similarities are multiplied by."""
    batch: Batch
    """The batch that was encoded."""
    bias: Tensor | None = None
    """The logit bias of a model with a sigmoid loss; None for CLIP."""

    @property
    def logits(self) -> Tensor:
        """The model's own scores of all images and prompts [B, P]."""
        scaled = self.scale * self.images @ self.texts.T
        return scaled if self.bias is None else scaled + self.bias


LOSSES: dict[LossName, Callable[..., Tensor]] = {
    "contrastive": contrastive,
    "label-aware": label_aware,
    "cross-entropy": class_cross_entropy,
}
SIGMOID_LOSSES = {
    "contrastive": sigmoid,
    "label-aware": sigmoid_label_aware,
    "cross-entropy": sigmoid_classification,
}
"""The losses of the same names for a model with a logit bias."""


def pair_loss(
    features: Features, loss: LossName, objective: Objective, smoothing: float = 0.0
) -> Tensor:
    """The loss on new and replayed pairs: Eq. 3's two losses summed, or one joined matrix.

    The names of losses stand for forms of the model's own loss, softmax or sigmoid. With several
    ranks, each returns the contribution of its own pairs times the world size, so that the
    mean over ranks is the loss.
    """
    loss_fn, batch = partial(LOSSES[loss], smoothing=smoothing), features.batch
    if features.bias is not None:
        loss_fn = partial(SIGMOID_LOSSES[loss], bias=features.bias)
    texts, prompts = features.texts, batch.prompt
    if batch.answers is not None:
        texts, prompts = texts[batch.answers], torch.searchsorted(batch.answers, prompts)
    new, count = batch.new, len(features.images)
    single = objective == "joined" or new == count
    terms = []
    for part in [slice(0, count)] if single else [slice(0, new), slice(new, count)]:
        images, prompt, pairs = features.images[part], prompts[part], _rank_pairs(part, count)
        terms.append(loss_fn(images, texts, prompt, features.scale, pairs=pairs))
    return collectives.world_size() * (terms[0] if single else terms[0] + terms[1])


def _rank_pairs(part: slice, count: int) -> slice | None:
    """Which pairs within `part` of the batch belong to this rank; None without ranks."""
    if collectives.world_size() == 1:
        return None
    local, size = collectives.rank_slice(count), part.stop - part.start
    start, stop = (min(max(index - part.start, 0), size) for index in (local.start, local.stop))
    return slice(start, stop)


def losses(
    clip: Clip, batch: Batch, loss: Callable[[Features], Tensor], micro_batch: int | None = None
) -> Iterator[Tensor]:
    """Yield terms whose sum is the loss of the batch, in value and in gradient.

    Without `micro_batch` there is one term. With it, the activations of at most that many images
    or prompts are held at a time, and the result is the same although every image is compared with
    all others (gradient caching): encode everything without a graph, take the gradient of the loss
    with respect to the features, then re-encode chunk by chunk, each chunk yielding a term that
    carries its features' gradient through the encoder.
    """
    world_size = collectives.world_size()
    num_images, num_texts = len(batch.prompt), num_prompts(batch.tokens)
    if fits(num_images, num_texts, micro_batch):
        images, texts = encode_rank_pairs(clip, batch.pixels, batch.tokens)
        gathered = collectives.gather(images, num_images), collectives.gather(texts, num_texts)
        yield loss(Features(*gathered, clip.logit_scale, batch, clip.logit_bias)) / world_size
        return
    cached = encode_batch(clip, batch, micro_batch)
    leaves = [t.clone().requires_grad_() for t in (cached.images, cached.texts, cached.scale)]
    leaves += [] if cached.bias is None else [cached.bias.clone().requires_grad_()]
    bias = None if cached.bias is None else leaves[3]
    value = loss(Features(leaves[0], leaves[1], leaves[2], batch, bias)) / world_size
    grads = torch.autograd.grad(value, leaves, retain_graph=True, materialize_grads=True)
    image_grad, text_grad = map(collectives.reduce_scatter, grads[:2])
    yield value  # carries the gradient of what the loss takes from the weights directly
    del value  # as in `backward_terms`
    parts = prompt_chunks(num_texts, micro_batch)
    text_grads = chunks(text_grad, num_texts, micro_batch)
    for part, grad in zip(parts, text_grads, strict=True):
        yield _term(encode_rank_texts(clip, batch.tokens, part), grad)
    yield _term(clip.logit_scale, grads[2])
    if clip.logit_bias is not None:
        yield _term(clip.logit_bias, grads[3])
    pixel_chunks = chunks(batch.pixels, num_images, micro_batch)
    image_grads = chunks(image_grad, num_images, micro_batch)
    for pixels, grad in zip(pixel_chunks, image_grads, strict=True):
        yield _term(encode_rank_images(clip, pixels), grad)


def scale_terms(factor: float, terms: Iterable[Tensor]) -> Iterator[Tensor]:
    """Multiply each term. No term is held while the next is computed (see `backward_terms`)."""
    return map(partial(mul, factor), terms)


def backward_terms(terms: Iterable[Tensor]) -> Tensor:
    """Run the backward pass of each term as it comes, and return the sum of their values."""
    values = []
    for term in terms:
        if term.requires_grad:
            term.backward()
        values.append(term.detach())
        del term  # the graph it holds would keep a GPU from capturing the next pass
    return sum(values[1:], values[0])


@torch.no_grad()
def encode_batch(clip: Clip, batch: Batch, micro_batch: int | None = None) -> Features:
    """Features of a batch without a graph, at most `micro_batch` images or prompts at a time."""
    num_images, num_texts = len(batch.prompt), num_prompts(batch.tokens)
    pixel_chunks = chunks(batch.pixels, num_images, micro_batch)
    images = torch.cat([encode_rank_images(clip, pixels) for pixels in pixel_chunks])
    parts = prompt_chunks(num_texts, micro_batch)
    texts = torch.cat([encode_rank_texts(clip, batch.tokens, part) for part in parts])
    bias = clip.logit_bias
    return Features(
        collectives.gather(images, num_images),
        collectives.gather(texts, num_texts),
        clip.logit_scale,
        batch,
        None if bias is None else bias.detach(),
    )


def _term(tensor: Tensor, grad: Tensor) -> Tensor:
    """Zero in value, with `grad` as its gradient with respect to `tensor`."""
    term = (tensor * grad).sum()
    return term - term.detach()
