"""Images with preprocessed pixels somewhere else; for anything else their source is asked."""

from collections.abc import Iterator

from PIL import Image

from retouch.clip.preprocess import Preprocess
from retouch.data.stores.file_range import FileRange
from retouch.data.stores.image_store import ImageStore, Indices


class PreprocessedStore(ImageStore):
    """The images of a source, already as a model takes them. Subclasses read the pixels.

    Args:
        source: The images, not decoded.
        preprocess: The size and crop that the model wants.
    """

    def __init__(self, source: ImageStore, preprocess: Preprocess) -> None:
        self.source = source
        self._transform = preprocess.transform

    def __len__(self) -> int:
        return len(self.source)

    def image(self, index: int) -> Image.Image:
        return self.source.image(index)

    def location(self, index: int) -> str:
        return self.source.location(index)

    def file_range(self, index: int) -> FileRange | None:
        return self.source.file_range(index)

    def version(self) -> str:
        return self.source.version()

    def identifiers(self, indices: Indices) -> Iterator[bytes]:
        return self.source.identifiers(indices)

    def leading_bytes(self, index: int, limit: int) -> bytes:
        return self.source.leading_bytes(index, limit)

    def is_preprocessed(self, preprocess: Preprocess) -> bool:
        return preprocess.transform == self._transform
