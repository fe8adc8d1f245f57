"""From a batch to its features; of several processes, each encodes a part and all get the whole.

A process whose part is empty still encodes something and throws it away: so all of them have the
same graph, and nobody waits for a gradient that never comes.
"""

from torch import Tensor

from retouch.clip.model import Clip, Tokens, num_prompts
from retouch.distributed import collectives


def encode_rank_images(clip: Clip, pixels: Tensor) -> Tensor:
    """Features of this process's images, be there none."""
    if len(pixels):
        return clip.image_features(pixels)
    return clip.image_features(pixels.new_zeros((1, *pixels.shape[1:])))[:0]


def encode_rank_texts(clip: Clip, tokens: Tokens) -> Tensor:
    """Features of this process's part of the prompts."""
    if own := rank_tokens(tokens):
        return clip.text_features(own)
    return clip.text_features({key: value[:1] for key, value in tokens.items()})[:0]


def encode_rank_pairs(clip: Clip, pixels: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
    """Features of this process's images and prompts, side by side."""
    own = rank_tokens(tokens)
    if len(pixels) and own:
        return clip.pair_features(pixels, own)
    return encode_rank_images(clip, pixels), encode_rank_texts(clip, tokens)


def rank_tokens(tokens: Tokens) -> Tokens:
    """This process's part of the prompts; nothing if there are too few for all processes."""
    part = collectives.rank_slice(num_prompts(tokens))
    return {key: value[part] for key, value in tokens.items()} if part.start < part.stop else {}


def chunks(rows: Tensor, count: int, at_once: int | None) -> list[Tensor]:
    """This process's rows of `count`, so many at once.

    All processes get as many chunks, be the last one empty: where they share the weights
    (`distributed.fsdp`), all must encode equally often.
    """
    most = max(1, collectives.largest_rank_slice(count))
    step = at_once or most
    return [rows[start : start + step] for start in range(0, most, step)]
