"""Pictures, wherever they lie: files, members of tar shards, arrays, or some of those."""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from retouch.clip.preprocess import Preprocess, Uint8
from retouch.data.decode import Unreadable, decode, parallel_map
from retouch.data.file_range import FileRange
from retouch.data.string_array import StringArray
from retouch.data.text_files import special_kind
from retouch.errors import UserError

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class UnreadableImage:
    """An image that cannot be read."""

    index: int
    where: str
    why: str

    def __str__(self) -> str:
        return f"{self.where} cannot be read as an image ({self.why})"


class ImageStore(ABC):
    """A sequence of pictures. A subclass says how many there are and returns one at a time."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def image(self, index: int) -> Image.Image:
        """Decode one picture, in RGB. Raises `Unreadable`.

        Args:
            index: Its position.
        """

    @abstractmethod
    def location(self, index: int) -> str:
        """Where a person would find a picture.

        Args:
            index: Its position.
        """

    @abstractmethod
    def version(self) -> str:
        """A text that changes whenever a picture does; caches made before are then built again."""

    def file_range(self, index: int) -> FileRange | None:
        """Where the bytes of a picture lie, if they are in a file.

        Args:
            index: Its position.
        """
        return None

    def identifiers(self, indices: Indices) -> Iterator[bytes]:
        """A mark of each picture that a copy elsewhere shares, such as its name and size.

        It is cheap: no picture is decoded. A kind that does not say uses its `version`.

        Args:
            indices: Their positions.
        """
        stamp = self.version().encode()
        return (b"%s %d" % (stamp, index) for index in indices)

    def leading_bytes(self, index: int, most: int) -> bytes:
        """The first bytes of a picture as it is stored, if it is.

        Args:
            index: Its position.
            most: How many bytes at most.
        """
        return b""

    def is_preprocessed(self, pixels: Preprocess) -> bool:
        """Whether the pictures are as the model takes them already, with nothing left to decode.

        Args:
            pixels: The size and crop that the model wants.
        """
        return False

    def preprocessed(self, index: int, pixels: Preprocess) -> Uint8:
        """One picture as the model takes it, [H, W, 3]. Raises `Unreadable`.

        Args:
            index: Its position.
            pixels: The size and crop that the model wants.
        """
        return pixels.prepare(self.image(index))

    def read(self, indices: Indices, pixels: Preprocess, out: Uint8 | None = None) -> Uint8:
        """Read pictures as the model takes them, [B, H, W, 3].

        Args:
            indices: Their positions.
            pixels: The size and crop that the model wants.
            out: An array to read them into. Default: a new one.
        """
        found, bad = self.try_read(indices, pixels, out)
        if bad:
            raise UserError(f"{bad[0]}; repair or remove it, or skip such images with --skip-bad")
        return found

    def try_read(
        self, indices: Indices, pixels: Preprocess, out: Uint8 | None = None
    ) -> tuple[Uint8, list[UnreadableImage]]:
        """The same, black where a picture cannot be read, and which those are.

        Args:
            indices: Their positions.
            pixels: The size and crop that the model wants.
            out: An array to read them into. Default: a new one.
        """
        found = output_buffer(indices, pixels, out)

        def one(place: int) -> UnreadableImage | None:
            index = int(indices[place])
            try:
                found[place] = self.preprocessed(index, pixels)
            except Unreadable as why:
                found[place] = 0
                return UnreadableImage(index, self.location(index), str(why))
            return None

        return found, [bad for bad in parallel_map(one, len(indices)) if bad]


def output_buffer(indices: Indices, pixels: Preprocess, out: Uint8 | None) -> Uint8:
    """Where so many pictures go: to a place that was given, or a new one."""
    return np.empty((len(indices), *pixels.size, 3), np.uint8) if out is None else out


class FileStore(ImageStore):
    """Files on disk; the names are relative to `root`."""

    def __init__(self, root: Path, names: Sequence[str]) -> None:
        self.root = root
        self.names = names if isinstance(names, StringArray) else StringArray(names)

    def __len__(self) -> int:
        return len(self.names)

    def image(self, index: int) -> Image.Image:
        return decode(self.root / self.names[index])

    def location(self, index: int) -> str:
        return str(self.root / self.names[index])

    def file_range(self, index: int) -> FileRange | None:
        path = self.root / self.names[index]
        try:
            found = os.stat(path)  # noqa: PTH116
        except (OSError, ValueError):
            return None
        return None if special_kind(found.st_mode) else FileRange(path, 0, found.st_size)

    def version(self) -> str:
        digest = hashlib.blake2b(self.names.raw, digest_size=16)
        for name in self.names:
            digest.update(_size_and_time(os.path.join(self.root, name)))  # noqa: PTH118
        return digest.hexdigest()

    def identifiers(self, indices: Indices) -> Iterator[bytes]:
        for index in indices:
            name = self.names[int(index)]
            size = _size_and_time(os.path.join(self.root, name)).split()[0]  # noqa: PTH118
            yield b"%s %s" % (name.encode(errors="surrogateescape"), size)

    def leading_bytes(self, index: int, most: int) -> bytes:
        path = self.root / self.names[index]
        if not path.is_file():  # a pipe would never end
            return b""
        with path.open("rb") as file:
            return file.read(most)


class TarStore(ImageStore):
    """Members of tar files that are not compressed, read in place."""

    def __init__(
        self,
        shards: Sequence[Path],
        shard: Indices,
        start: Indices,
        size: Indices,
        names: StringArray,
    ) -> None:
        self.shards = list(shards)
        self.names = names
        self._shard, self._start, self._size = shard, start, size

    def __len__(self) -> int:
        return len(self._start)

    def image(self, index: int) -> Image.Image:
        try:
            with self.shards[self._shard[index]].open("rb") as file:
                file.seek(self._start[index])
                return decode(file.read(self._size[index]))
        except OSError as why:
            raise Unreadable(why.strerror or str(why)) from None

    def location(self, index: int) -> str:
        return f"{self.shards[self._shard[index]]}:{self.names[index]}"

    def file_range(self, index: int) -> FileRange | None:
        shard = self.shards[self._shard[index]]
        return FileRange(shard, int(self._start[index]), int(self._size[index]))

    def version(self) -> str:
        digest = hashlib.blake2b(self.names.raw, digest_size=16)
        digest.update(self._shard.tobytes() + self._start.tobytes())
        for shard in self.shards:
            digest.update(_size_and_time(shard))
        return digest.hexdigest()

    def identifiers(self, indices: Indices) -> Iterator[bytes]:
        for index in indices:
            name = self.names[int(index)].encode(errors="surrogateescape")
            yield b"%s %d" % (name, self._size[index])

    def leading_bytes(self, index: int, most: int) -> bytes:
        with self.shards[self._shard[index]].open("rb") as file:
            file.seek(self._start[index])
            content: bytes = file.read(min(most, int(self._size[index])))
            return content


class ArrayStore(ImageStore):
    """Pictures that are in memory already, [N, H, W, 3]."""

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

    def is_preprocessed(self, pixels: Preprocess) -> bool:
        return self.arrays.shape[1:3] == pixels.size

    def read(self, indices: Indices, pixels: Preprocess, out: Uint8 | None = None) -> Uint8:
        if not self.is_preprocessed(pixels):
            return super().read(indices, pixels, out)
        if out is None:
            return self.arrays[indices]
        return np.take(self.arrays, indices, axis=0, out=out, mode="clip")


class SubsetStore(ImageStore):
    """Some pictures of others."""

    def __init__(self, whole: ImageStore, positions: Indices) -> None:
        self.whole: ImageStore = whole.whole if isinstance(whole, SubsetStore) else whole
        self.positions: Indices = np.asarray(positions, np.int64)
        if isinstance(whole, SubsetStore):
            self.positions = whole.positions[self.positions]

    def __len__(self) -> int:
        return len(self.positions)

    def image(self, index: int) -> Image.Image:
        return self.whole.image(int(self.positions[index]))

    def location(self, index: int) -> str:
        return self.whole.location(int(self.positions[index]))

    def file_range(self, index: int) -> FileRange | None:
        return self.whole.file_range(int(self.positions[index]))

    def version(self) -> str:
        digest = hashlib.blake2b(self.positions.tobytes(), digest_size=16)
        digest.update(self.whole.version().encode())
        return digest.hexdigest()

    def identifiers(self, indices: Indices) -> Iterator[bytes]:
        return self.whole.identifiers(self.positions[indices])

    def leading_bytes(self, index: int, most: int) -> bytes:
        return self.whole.leading_bytes(int(self.positions[index]), most)

    def is_preprocessed(self, pixels: Preprocess) -> bool:
        return self.whole.is_preprocessed(pixels)

    def read(self, indices: Indices, pixels: Preprocess, out: Uint8 | None = None) -> Uint8:
        return self.whole.read(self.positions[indices], pixels, out)


class ConcatStore(ImageStore):
    """Pictures of two kinds, one after the other."""

    def __init__(self, first: ImageStore, second: ImageStore) -> None:
        self.first, self.second = first, second

    def __len__(self) -> int:
        return len(self.first) + len(self.second)

    def image(self, index: int) -> Image.Image:
        part, inside = self._part(index)
        return part.image(inside)

    def location(self, index: int) -> str:
        part, inside = self._part(index)
        return part.location(inside)

    def file_range(self, index: int) -> FileRange | None:
        part, inside = self._part(index)
        return part.file_range(inside)

    def version(self) -> str:
        both = f"{self.first.version()} {self.second.version()}"
        return hashlib.blake2b(both.encode(), digest_size=16).hexdigest()

    def identifiers(self, indices: Indices) -> Iterator[bytes]:
        early, start = indices < len(self.first), len(self.first)
        first, second = (
            self.first.identifiers(indices[early]),
            self.second.identifiers(indices[~early] - start),
        )
        return (next(first if is_early else second) for is_early in early)

    def leading_bytes(self, index: int, most: int) -> bytes:
        part, inside = self._part(index)
        return part.leading_bytes(inside, most)

    def is_preprocessed(self, pixels: Preprocess) -> bool:
        return self.first.is_preprocessed(pixels) and self.second.is_preprocessed(pixels)

    def read(self, indices: Indices, pixels: Preprocess, out: Uint8 | None = None) -> Uint8:
        found = output_buffer(indices, pixels, out)
        early, start = indices < len(self.first), len(self.first)
        for part, own, shift in ((self.first, early, 0), (self.second, ~early, start)):
            if own.any():
                found[own] = part.read(indices[own] - shift, pixels)
        return found

    def _part(self, index: int) -> tuple[ImageStore, int]:
        start = len(self.first)
        return (self.first, index) if index < start else (self.second, index - start)


def _size_and_time(path: str | Path) -> bytes:
    try:
        found = os.stat(path)  # noqa: PTH116
    except (OSError, ValueError):  # a NUL can be in no name
        return b"missing"
    return b"%d %d;" % (found.st_size, found.st_mtime_ns)
