"""Images in tar shards, read in place."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from PIL import Image

from retouch.data.loading.decode import DecodeError, decode
from retouch.data.stores.file_range import FileRange, size_and_mtime
from retouch.data.stores.image_store import ImageStore, Indices
from retouch.data.stores.string_array import StringArray


class TarStore(ImageStore):
    """Members of uncompressed tar files.

    For each image: the index of its shard, where its bytes start there, how many there are, and the
    member's name.
    """

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
            raise DecodeError(why.strerror or str(why)) from None

    def location(self, index: int) -> str:
        return f"{self.shards[self._shard[index]]}:{self.names[index]}"

    def file_range(self, index: int) -> FileRange | None:
        shard = self.shards[self._shard[index]]
        return FileRange(shard, int(self._start[index]), int(self._size[index]))

    def version(self) -> str:
        digest = hashlib.blake2b(self.names.raw, digest_size=16)
        digest.update(self._shard.tobytes() + self._start.tobytes())
        for shard in self.shards:
            digest.update(size_and_mtime(shard))
        return digest.hexdigest()

    def identifiers(self, indices: Indices) -> Iterator[bytes]:
        for index in indices:
            name = self.names[int(index)].encode(errors="surrogateescape")
            yield b"%s %d" % (name, self._size[index])

    def leading_bytes(self, index: int, limit: int) -> bytes:
        with self.shards[self._shard[index]].open("rb") as file:
            file.seek(self._start[index])
            content: bytes = file.read(min(limit, int(self._size[index])))
            return content
