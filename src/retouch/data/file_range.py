"""Where the bytes of a picture lie: a whole file, or a stretch of a tar shard."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class FileRange:
    """The bytes of a file that hold a picture."""

    path: Path
    start: int
    size: int

    def read(self, edge: int | None = None) -> bytes | None:
        """All of them, or so many at both ends; None where the file cannot be read."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.start)
                if edge is None or self.size <= 2 * edge:
                    return file.read(self.size)
                first = file.read(edge)
                file.seek(self.start + self.size - edge)
                return first + file.read(edge)
        except OSError:
            return None
