"""SigLIP's loss on image–prompt pairs: each pair by itself matches or does not.

A model with a logit bias was pre-trained with it, and is ruined by a softmax over the batch, which
ignores the bias and with it the level of the scores. As in `clip.losses` each prompt is encoded
once: B images with P distinct prompts give P scores per image, and a score counts as often as its
prompt occurs in the batch.
"""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot, softplus


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
    """The cross-entropy over classes; of each class by itself where there is a logit bias.

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
