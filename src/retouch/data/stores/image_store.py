"""A sequence of images, however they are stored: in files, tar shards, arrays, or a cache."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from retouch.clip.preprocess import Preprocess, Uint8
from retouch.data.loading.decode import DecodeError, parallel_map
from retouch.data.loading.progress import Progress, no_progress
from retouch.data.stores.file_range import FileRange
from retouch.errors import UserError

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class UnreadableImage:
    """An image that cannot be decoded, and why."""

    index: int
    location: str
    reason: str

    def __str__(self) -> str:
        return f"{self.location} cannot be read as an image ({self.reason})"


class ImageStore(ABC):
    """A sequence of images. A subclass says how many there are and returns one at a time."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def image(self, index: int) -> Image.Image:
        """Decode one image, in RGB. Raises `DecodeError`.

        Args:
            index: Its position.
        """

    @abstractmethod
    def location(self, index: int) -> str:
        """Where a person would find an image: its path, for example.

        Args:
            index: Its position.
        """

    @abstractmethod
    def version(self) -> str:
        """A checksum that changes whenever an image does; a cache with another one is stale."""

    def file_range(self, index: int) -> FileRange | None:
        """Which bytes of which file hold an image, if it is in a file.

        Args:
            index: Its position.
        """
        return None

    def identifiers(self, indices: Indices) -> Iterator[bytes]:
        """What identifies each image and is the same for a copy elsewhere: its name and size.

        It has to be cheap: no image is decoded. Without an override, `version` and the index.

        Args:
            indices: The positions of the images.
        """
        version = self.version().encode()
        return (b"%s %d" % (version, index) for index in indices)

    def leading_bytes(self, index: int, limit: int) -> bytes:
        """The first bytes of an image's file; empty if it has none.

        Args:
            index: Its position.
            limit: The maximum number of bytes.
        """
        return b""

    def wait(self, progress: Progress = no_progress) -> None:  # noqa: B027
        """Wait until all images are decoded, if that is done in the background.

        Raises an error if one cannot be read.

        Args:
            progress: Shows how far it is.
        """

    def is_preprocessed(self, preprocess: Preprocess) -> bool:
        """Whether the images are already as the model takes them, with nothing left to decode.

        Args:
            preprocess: The size and crop that the model wants.
        """
        return False

    def preprocessed(self, index: int, preprocess: Preprocess) -> Uint8:
        """One image as the model takes it, [H, W, 3]. Raises `DecodeError`.

        Args:
            index: Its position.
            preprocess: The size and crop that the model wants.
        """
        return preprocess.prepare(self.image(index))

    def read(self, indices: Indices, preprocess: Preprocess, out: Uint8 | None = None) -> Uint8:
        """Read images as the model takes them, [B, H, W, 3].

        Args:
            indices: Their positions.
            preprocess: The size and crop that the model wants.
            out: An array to read them into. Default: a new one.
        """
        pixels, unreadable = self.try_read(indices, preprocess, out)
        if unreadable:
            raise UserError(
                f"{unreadable[0]}; repair or remove it, or skip such images",
                argument="skip_bad=True",
            )
        return pixels

    def try_read(
        self, indices: Indices, preprocess: Preprocess, out: Uint8 | None = None
    ) -> tuple[Uint8, list[UnreadableImage]]:
        """Like `read`, but an unreadable image is black, and is listed instead of raising.

        Args:
            indices: Their positions.
            preprocess: The size and crop that the model wants.
            out: An array to read them into. Default: a new one.
        """
        pixels = output_buffer(indices, preprocess, out)

        def read_one(position: int) -> UnreadableImage | None:
            index = int(indices[position])
            try:
                pixels[position] = self.preprocessed(index, preprocess)
            except DecodeError as why:
                pixels[position] = 0
                return UnreadableImage(index, self.location(index), str(why))
            return None

        results = parallel_map(read_one, len(indices))
        return pixels, [result for result in results if result is not None]


def output_buffer(indices: Indices, preprocess: Preprocess, out: Uint8 | None) -> Uint8:
    """`out`, or a new array for this many preprocessed images."""
    return np.empty((len(indices), *preprocess.size, 3), np.uint8) if out is None else out
