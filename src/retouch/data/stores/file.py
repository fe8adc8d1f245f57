"""Images in files of their own."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from PIL import Image

from retouch.data.formats.text_files import special_kind
from retouch.data.loading.decode import decode
from retouch.data.stores.file_range import FileRange, size_and_mtime
from retouch.data.stores.image_store import ImageStore, Indices
from retouch.data.stores.string_array import StringArray


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
        path = os.path.join(self.root, self.names[index])  # noqa: PTH118 (a Path takes memory)
        try:
            stat = os.stat(path)  # noqa: PTH116
        except (OSError, ValueError):
            return None
        return None if special_kind(stat.st_mode) else FileRange(path, 0, stat.st_size)

    def version(self) -> str:
        digest = hashlib.blake2b(self.names.raw, digest_size=16)
        for name in self.names:
            digest.update(size_and_mtime(os.path.join(self.root, name)))  # noqa: PTH118
        return digest.hexdigest()

    def identifiers(self, indices: Indices) -> Iterator[bytes]:
        for index in indices:
            name = self.names[int(index)]
            size = size_and_mtime(os.path.join(self.root, name)).split()[0]  # noqa: PTH118
            yield b"%s %s" % (name.encode(errors="surrogateescape"), size)

    def leading_bytes(self, index: int, limit: int) -> bytes:
        path = self.root / self.names[index]
        if not path.is_file():  # reading a pipe would never end
            return b""
        with path.open("rb") as file:
            return file.read(limit)
