"""Write files whole or not at all."""

import os
from pathlib import Path


def write_atomically(path: str | Path, content: bytes | str) -> None:
    """Replace `path` in one move: a crash leaves the old file or the new, never half of one."""
    path = Path(path)
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
