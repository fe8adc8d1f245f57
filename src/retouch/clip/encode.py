"""Encode this rank's part of a batch.

A rank whose part is empty still encodes one row and drops the result. All ranks then have the same
autograd graph, so no rank waits for a gradient that never arrives.
"""

from typing import TypeVar, cast

from torch import Tensor

from retouch.clip.keyed_images import KeyedImages, Pixels
from retouch.clip.model import Clip
from retouch.clip.tokens import Tokens, num_prompts
from retouch.distributed import collectives

Rows = TypeVar("Rows", bound=Pixels)


def encode_rank_images(clip: Clip, pixels: Pixels) -> Tensor:
    """Features of this rank's images, of which there may be none."""
    if len(pixels):
        return clip.image_features(pixels)
    empty = pixels.pixels() if isinstance(pixels, KeyedImages) else pixels
    return clip.image_features(empty.new_zeros((1, *empty.shape[1:])))[:0]


def encode_rank_texts(clip: Clip, tokens: Tokens) -> Tensor:
    """Features of this rank's part of the prompts."""
    if local_tokens := rank_tokens(tokens):
        return clip.text_features(local_tokens)
    return clip.text_features({key: value[:1] for key, value in tokens.items()})[:0]


def encode_rank_pairs(clip: Clip, pixels: Pixels, tokens: Tokens) -> tuple[Tensor, Tensor]:
    """Features of this rank's images and prompts; a GPU may encode both concurrently."""
    local_tokens = rank_tokens(tokens)
    if len(pixels) and local_tokens:
        return clip.pair_features(pixels, local_tokens)
    return encode_rank_images(clip, pixels), encode_rank_texts(clip, tokens)


def rank_tokens(tokens: Tokens) -> Tokens:
    """This rank's part of the prompts; empty if there are fewer prompts than ranks."""
    part = collectives.rank_slice(num_prompts(tokens))
    return {key: value[part] for key, value in tokens.items()} if part.start < part.stop else {}


def chunks(rows: Rows, count: int, chunk_size: int | None) -> list[Rows]:
    """Split this rank's rows (its share of `count`) into chunks; None makes a single chunk.

    Every rank gets the same number of chunks, the last of which may be empty: where weights are
    sharded (`distributed.fsdp`), all ranks must run the encoder equally often.
    """
    num_rows = max(1, collectives.largest_rank_slice(count))
    step = chunk_size or num_rows
    return [cast(Rows, rows[start : start + step]) for start in range(0, num_rows, step)]
