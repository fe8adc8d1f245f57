"""Encode this rank's part of a batch.

A rank whose part is empty still encodes one row and drops the result. All ranks then have the same
autograd graph, so no rank waits for a gradient that never arrives.
"""

from typing import TypeVar, cast

from torch import Tensor

from retouch.clip.frozen.keyed_images import KeyedImages, Pixels
from retouch.clip.model import Clip
from retouch.clip.text.tokens import Tokens, num_prompts
from retouch.distributed import collectives

Rows = TypeVar("Rows", bound=Pixels | range)


def encode_rank_images(clip: Clip, pixels: Pixels) -> Tensor:
    """Features of this rank's images; it may have none."""
    if len(pixels):
        return clip.image_features(pixels)
    empty = pixels.pixels() if isinstance(pixels, KeyedImages) else pixels
    return clip.image_features(empty.new_zeros((1, *empty.shape[1:])))[:0]


def encode_rank_texts(clip: Clip, tokens: Tokens, part: slice | None = None) -> Tensor:
    """Features of this rank's part of the prompts, or of a chunk of it (see `prompt_chunks`)."""
    part = collectives.rank_slice(num_prompts(tokens)) if part is None else part
    if part.start < part.stop:
        return clip.text_features({key: ids[part] for key, ids in tokens.items()})
    return clip.text_features({key: ids[:1] for key, ids in tokens.items()})[:0]


def encode_rank_pairs(clip: Clip, pixels: Pixels, tokens: Tokens) -> tuple[Tensor, Tensor]:
    """Features of this rank's images and prompts; a GPU may encode both concurrently."""
    part = collectives.rank_slice(num_prompts(tokens))
    if len(pixels) and part.start < part.stop:
        return clip.pair_features(pixels, {key: ids[part] for key, ids in tokens.items()})
    return encode_rank_images(clip, pixels), encode_rank_texts(clip, tokens)


def fits(num_images: int, num_texts: int, micro_batch: int | None) -> bool:
    """Whether a rank's images and prompts may all be encoded at once."""
    largest = max(map(collectives.largest_rank_slice, (num_images, num_texts)))
    return micro_batch is None or largest <= micro_batch


def chunks(rows: Rows, count: int, chunk_size: int | None) -> list[Rows]:
    """Split this rank's rows (its share of `count`) into chunks; None makes a single chunk.

    Every rank gets the same number of chunks, the last of which may be empty: where weights are
    sharded (`distributed.fsdp`), all ranks must run the encoder the same number of times.
    """
    num_rows = max(1, collectives.largest_rank_slice(count))
    step = chunk_size or num_rows
    return [cast(Rows, rows[start : start + step]) for start in range(0, num_rows, step)]


def prompt_chunks(count: int, chunk_size: int | None) -> list[slice]:
    """The chunks of this rank's share of `count` prompts, as slices of all of them (see `chunks`).

    One may be empty: `encode_rank_texts` then encodes a prompt of another rank in its place.
    """
    part = collectives.rank_slice(count)
    positions = chunks(range(part.start, part.stop), count, chunk_size)
    return [slice(rows.start, rows.stop) for rows in positions]
