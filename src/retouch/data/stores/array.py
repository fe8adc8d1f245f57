"""Images that are in memory already."""

import hashlib
from collections.abc import Iterator

import numpy as np
from PIL import Image

from retouch.clip.preprocess import Preprocess, Uint8
from retouch.data.stores.image_store import ImageStore, Indices


class ArrayStore(ImageStore):
    """An array of RGB images, [N, H, W, 3]."""

    def __init__(self, arrays: Uint8, name: str = "picture") -> None:
        self.arrays = arrays
        self.name = name

    def __len__(self) -> int:
        return len(self.arrays)

    def image(self, index: int) -> Image.Image:
        return Image.fromarray(self.arrays[index])

    def location(self, index: int) -> str:
        return f"{self.name} {index}"

    def version(self) -> str:
        return hashlib.blake2b(self.arrays.tobytes(), digest_size=16).hexdigest()

    def identifiers(self, indices: Indices) -> Iterator[bytes]:
        for index in indices:
            pixels = np.ascontiguousarray(self.arrays[index])
            shape = repr((pixels.shape, pixels.dtype.str)).encode()
            yield hashlib.blake2b(pixels.data, digest_size=16, key=shape).digest()

    def is_preprocessed(self, preprocess: Preprocess) -> bool:
        return self.arrays.shape[1:3] == preprocess.size

    def read(self, indices: Indices, preprocess: Preprocess, out: Uint8 | None = None) -> Uint8:
        if not self.is_preprocessed(preprocess):
            return super().read(indices, preprocess, out)
        if out is None:
            return self.arrays[indices]
        return np.take(self.arrays, indices, axis=0, out=out, mode="clip")
