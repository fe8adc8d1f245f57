"""Encode images for evaluation: each rank encodes its share, and reads ahead meanwhile."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from math import ceil
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from retouch.clip import Clip
from retouch.clip.encode import encode_rank_images
from retouch.clip.frozen.keyed_images import Pixels
from retouch.data.images import Images
from retouch.data.loading.prefetch import load_images, prefetch, to_device
from retouch.data.loading.progress import Progress
from retouch.data.stores.image_store import Indices
from retouch.distributed import collectives

_CPU_BATCH, _CPU_DEPTH = 64, 2  # what fits into a CPU's cache is faster
_GPU_BATCH, _GPU_DEPTH = 256, 8  # larger, since a few threads load images more slowly than that


class ImageSubset(NamedTuple):
    """Some images of a set."""

    images: Images
    indices: Indices


def image_features(
    clip: Clip, images: Images, indices: Indices, progress: Progress | None = None
) -> Tensor:
    """Features of these images [N, D]. Each rank encodes its slice; every rank gets all of them."""
    (features,) = encode_image_sets(clip, [ImageSubset(images, indices)], progress)
    return features


def encode_image_sets(
    clip: Clip, subsets: Sequence[ImageSubset], progress: Progress | None = None
) -> Iterator[Tensor]:
    """Features of each subset in turn [N, D].

    Reading begins with the call, in the background, before the first features are asked for: the
    caller can keep a GPU busy with something else meanwhile.
    """
    batch, depth = (
        (_CPU_BATCH, _CPU_DEPTH) if clip.device.type == "cpu" else (_GPU_BATCH, _GPU_DEPTH)
    )
    # In storage order, so that many neighboring images are read at once.
    orders = [np.argsort(indices) for _, indices in subsets]
    counts = [
        max(1, ceil(collectives.largest_rank_slice(len(indices)) / batch)) for _, indices in subsets
    ]

    def read(part: ImageSubset) -> Pixels:
        return load_images(clip, part.images, part.indices)

    parts = _rank_batches(subsets, orders, counts, progress)
    loaded = (pixels for _, pixels in prefetch(read, parts, depth))
    positions = [to_device(torch.from_numpy(np.argsort(order)), clip.device) for order in orders]

    @torch.no_grad()
    def features() -> Iterator[Tensor]:
        for count, position in zip(counts, positions, strict=True):
            encoded = [encode_rank_images(clip, pixels) for pixels in islice(loaded, count)]
            yield collectives.gather(torch.cat(encoded), len(position), "evaluation")[position]

    iterator: Iterator[Tensor] = features()
    return iterator


def _rank_batches(
    subsets: Sequence[ImageSubset],
    orders: Sequence[Indices],
    counts: Sequence[int],
    progress: Progress | None,
) -> Iterator[ImageSubset]:
    """The batches of this rank, the same number on every rank.

    They are nearly equal in size, so that `torch.compile` sees one shape.
    """
    for (images, indices), order, count in zip(subsets, orders, counts, strict=True):
        rank_indices = indices[order][collectives.rank_slice(len(indices))]
        batches: Iterable[Indices] = np.array_split(rank_indices, count)
        if progress:
            batches = progress(batches, f"Evaluating {images.name}", len(rank_indices))
        yield from (ImageSubset(images, batch) for batch in batches)
