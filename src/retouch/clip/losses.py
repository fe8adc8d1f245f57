"""The contrastive loss on image–prompt pairs, in the paper's two readings and a third.

A batch of N images holds few distinct prompts, so each prompt is encoded once and its feature is
repeated: the same loss and the same gradient, for a fraction of the work.

Where several processes learn together (`ranks`), each encodes its part of the images and of the
prompts, and all get the features of all. The batch's loss is then the *mean* over the processes of
what a loss function returns: one that looks at the whole batch returns the same everywhere, and
`pair_loss` what comes from its own pairs. Gradients add up over the processes.

B: images of a batch, b: those of this process, P: distinct prompts, D: features.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import mul
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from retouch.clip.encode import chunks, encode_rank_images, encode_rank_pairs, encode_rank_texts
from retouch.clip.model import Clip, Tokens, num_prompts
from retouch.distributed import collectives

LossName = Literal["contrastive", "label-aware"]
Objective = Literal["summed", "joined"]


@dataclass(frozen=True)
class Batch:
    """Image–prompt pairs of the current task, followed by replayed ones."""

    pixels: Tensor
    """8-bit pixels [b, H, W, 3] of this rank's images; on a single rank, of all."""
    tokens: Tokens
    """Tokens of the P distinct prompts."""
    prompt: Tensor
    """Which of the prompts belongs to each image [B]."""
    new: int
    """How many of the pairs, from the first, belong to the current task."""


@dataclass(frozen=True)
class Features:
    """What a loss may look at."""

    images: Tensor
    """Normalized features of the images [B, D]."""
    texts: Tensor
    """Normalized features of the distinct prompts [P, D]."""
    scale: Tensor
    """What similarities are multiplied by."""
    batch: Batch
    """The batch that was encoded."""


def contrastive(
    images: Tensor, texts: Tensor, prompt: Tensor, scale: Tensor, own: slice | None = None
) -> Tensor:
    """CLIP's loss: each image must find its own prompt and each prompt its own image.

    Two images of one class share a prompt and still count as each other's negatives, as in the
    pre-training; see `label_aware`. With `own`, the part of it that comes from these pairs.
    """
    rows, columns, at = _compared(images, texts, prompt, scale, own)
    return _found(rows, columns, at, own)


def label_aware(
    images: Tensor, texts: Tensor, prompt: Tensor, scale: Tensor, own: slice | None = None
) -> Tensor:
    """The same, but another image of the same class is no negative: it is left out of the sum."""
    rows, columns, at = _compared(images, texts, prompt, scale, own)
    everyone = torch.arange(len(images), device=images.device)
    same = (prompt[at][:, None] == prompt[None, :]) & (at[:, None] != everyone[None, :])
    rows, columns = (part.masked_fill(same, float("-inf")) for part in (rows, columns))
    return _found(rows, columns, at, own)


def _compared(
    images: Tensor, texts: Tensor, prompt: Tensor, scale: Tensor, own: slice | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Own images with all prompts and own prompts with all images [b, B], and where own ones are.

    Of a part of the pairs, no square of all is made.
    """
    at = torch.arange(len(images), device=images.device)
    if own is None:
        square = (scale * images @ texts.T)[:, prompt]
        return square, square.T, at
    rows = (scale * images[own] @ texts.T)[:, prompt]
    columns = scale * texts[prompt[own]] @ images.T
    return rows, columns, at[own]


def _found(rows: Tensor, columns: Tensor, at: Tensor, own: slice | None) -> Tensor:
    """How well own images and prompts find each other: the mean, or their part of it."""
    if own is None:
        return (cross_entropy(rows, at) + cross_entropy(columns, at)) / 2
    both = sum(cross_entropy(part, at, reduction="sum") for part in (rows, columns))
    return both / (2 * rows.shape[1])  # type: ignore[return-value]


LOSSES: dict[LossName, Callable[[Tensor, Tensor, Tensor, Tensor, slice | None], Tensor]] = {
    "contrastive": contrastive,
    "label-aware": label_aware,
}


def pair_loss(features: Features, loss: LossName, objective: Objective) -> Tensor:
    """The loss on new and replayed pairs: Eq. 3's two losses summed, or one joined matrix.

    Where several processes learn together, each returns what comes from its own pairs, so often
    that the mean over the processes is the loss.
    """
    of, batch = LOSSES[loss], features.batch
    new, count = batch.new, len(features.images)
    whole = objective == "joined" or new == count
    terms = []
    for part in [slice(0, count)] if whole else [slice(0, new), slice(new, count)]:
        images, prompt, own = features.images[part], batch.prompt[part], _own_pairs(part, count)
        terms.append(of(images, features.texts, prompt, features.scale, own))
    return collectives.world_size() * (terms[0] if whole else terms[0] + terms[1])


def _own_pairs(part: slice, count: int) -> slice | None:
    """Which pairs of a part of the batch are this process's; None: all."""
    if collectives.world_size() == 1:
        return None
    own, size = collectives.rank_slice(count), part.stop - part.start
    start, stop = (min(max(place - part.start, 0), size) for place in (own.start, own.stop))
    return slice(start, stop)


def losses(
    clip: Clip, batch: Batch, loss: Callable[[Features], Tensor], micro_batch: int | None = None
) -> Iterator[Tensor]:
    """Losses whose sum is the batch's loss, in value and in gradient.

    Without `micro_batch` there is just one. With it, at most so many images are held with their
    activations at a time, and the result is the same although every image is compared with all:
    first all features without a graph, then the loss's gradient with respect to the features, then
    chunk by chunk a term whose gradient is what the chain rule asks for.
    """
    each, images, texts = collectives.world_size(), len(batch.prompt), num_prompts(batch.tokens)
    if micro_batch is None or collectives.largest_rank_slice(images) <= micro_batch:
        features = encode_rank_pairs(clip, batch.pixels, batch.tokens)
        whole = collectives.gather(features[0], images), collectives.gather(features[1], texts)
        yield loss(Features(*whole, clip.logit_scale, batch)) / each
        return
    found = encode_batch(clip, batch, micro_batch)
    leaves = [t.clone().requires_grad_() for t in (found.images, found.texts, found.scale)]
    value = loss(Features(leaves[0], leaves[1], leaves[2], batch)) / each
    slopes = torch.autograd.grad(value, leaves, retain_graph=True, allow_unused=True)
    of_images, of_texts = (None if s is None else collectives.reduce_scatter(s) for s in slopes[:2])
    yield value  # brings the gradient of whatever the loss takes from the weights directly
    del value  # as in `go_back`
    yield _term(encode_rank_texts(clip, batch.tokens), of_texts)
    yield _term(clip.logit_scale, slopes[2])
    assert of_images is not None
    both = (chunks(rows, images, micro_batch) for rows in (batch.pixels, of_images))
    for chunk, slope in zip(*both, strict=True):
        yield _term(encode_rank_images(clip, chunk), slope)


def scale_terms(factor: float, terms: Iterable[Tensor]) -> Iterator[Tensor]:
    """Such terms, each so often. None is held here when the next is asked for (see `go_back`)."""
    return map(partial(mul, factor), terms)


def backward_terms(terms: Iterable[Tensor]) -> Tensor:
    """Leave the gradients of such terms with the parameters; what they add up to."""
    values = []
    for term in terms:
        if term.requires_grad:
            term.backward()
        values.append(term.detach())
        del term  # what it hangs on would keep a GPU from recording the next one
    return sum(values[1:], values[0])


@torch.no_grad()
def encode_batch(clip: Clip, batch: Batch, at_once: int | None = None) -> Features:
    """What a model makes of a batch as it is, so many images at once."""
    count = len(batch.prompt)
    images = torch.cat([encode_rank_images(clip, c) for c in chunks(batch.pixels, count, at_once)])
    texts = encode_rank_texts(clip, batch.tokens)
    return Features(
        collectives.gather(images, count),
        collectives.gather(texts, num_prompts(batch.tokens)),
        clip.logit_scale,
        batch,
    )


def _term(tensor: Tensor, slope: Tensor | None) -> Tensor:
    """Zero in value, with `slope` as its gradient with respect to `tensor`."""
    term = tensor.sum() * 0 if slope is None else (tensor * slope).sum()
    return term - term.detach()
