"""Where the encoded bytes of an image are: a whole file, or a range of a tar shard."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class FileRange:
    """The bytes of a file that hold an image."""

    path: str | Path
    start: int
    size: int

    def read(self, edge: int | None = None) -> bytes | None:
        """All bytes, or the first and the last `edge`; None if the file cannot be read."""
        try:
            with Path(self.path).open("rb") as file:
                file.seek(self.start)
                if edge is None or self.size <= 2 * edge:
                    return file.read(self.size)
                head = file.read(edge)
                file.seek(self.start + self.size - edge)
                return head + file.read(edge)
        except OSError:
            return None


def size_and_mtime(path: str | Path) -> bytes:
    """A file's size and modification time, for a checksum; `b"missing"` if there is none."""
    try:
        stat = os.stat(path)  # noqa: PTH116
    except (OSError, ValueError):  # no file name can contain a NUL
        return b"missing"
    return b"%d %d;" % (stat.st_size, stat.st_mtime_ns)
