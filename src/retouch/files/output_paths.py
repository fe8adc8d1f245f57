"""Check that output can be written, before the work whose result it is."""

import errno
import os
import shutil
import tempfile
from pathlib import Path

from retouch.errors import UserError, message_of
from retouch.text.printable import printable

LOCK, LOCK_INFO = ".lock", ".lock.json"
"""What a process has in a folder while it writes there: its lock, and which process it is."""
SYSTEM_FILES = (LOCK, LOCK_INFO, ".DS_Store", "Thumbs.db")
"""Files that nobody misses: a folder that holds nothing else counts as empty."""
MIN_FREE_BYTES = 100_000
"""With less, a disk counts as full: not even settings and results would fit."""


def real_path(path: str | os.PathLike[str]) -> Path:
    """The absolute path of a folder to write, through all symbolic links.

    A path that is not text is refused: safetensors could not read its files again.
    """
    try:
        resolved = Path(path).resolve()
        str(resolved).encode()
    except UnicodeEncodeError:
        raise UserError(
            f"{printable(str(path))}: this path is not valid UTF-8; choose another"
        ) from None
    except (OSError, RuntimeError, ValueError) as why:
        raise UserError(
            f"{printable(str(path))} cannot be a folder ({message_of(why)}); choose another path"
        ) from None
    return resolved


def check_folder(path: Path) -> None:
    """Refuse a folder, existing or not, that files cannot be written into."""
    real_path(path)
    nearest = _nearest_existing(path)
    if not nearest.is_dir():
        raise UserError(
            f"cannot write to {path}: {nearest} is a file, not a folder; choose another path"
        )
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as why:
        if why.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _disk_full(path) from None
        raise UserError(
            f"{path} cannot be written ({why.strerror} in {nearest}); choose another path"
        ) from None
    if free_bytes(path) < MIN_FREE_BYTES:
        raise _disk_full(path)


def check_new_file(path: Path) -> None:
    """Refuse a path for a new file or folder that exists already or cannot be written."""
    if real_path(path) == Path.cwd():
        raise UserError(f"{path} is the current folder; name a new one inside it")
    refuse_existing(path)
    check_folder(path if path.is_dir() else path.parent)


def refuse_existing(path: Path) -> None:
    """Refuse a path that exists, unless it is an empty folder: nothing is overwritten."""
    if path.exists() and not (path.is_dir() and is_empty(path)):
        raise UserError(f"{path} exists already; choose another name, or delete it first")


def is_empty(folder: Path) -> bool:
    """Whether a folder holds nothing that anybody would miss."""
    return not any(entry.name not in SYSTEM_FILES for entry in folder.iterdir())


def foreign_file(path: Path) -> UserError:
    """The error where a file or folder of the user's own would be replaced."""
    return UserError(
        f"{path} exists already, and retouch does not seem to have written it; choose another "
        "folder, or move it away"
    )


def free_bytes(path: Path) -> int:
    """Free disk space at a path, whether or not the folder exists yet."""
    return shutil.disk_usage(_nearest_existing(path)).free


def _nearest_existing(path: Path) -> Path:
    """The path itself, or the first folder above it that exists."""
    path = path.absolute()
    return next(p for p in (path, *path.parents) if p.exists() or p.is_symlink())


def _disk_full(path: Path) -> UserError:
    return UserError(
        f"cannot write to {path}: the disk is full; free some space, or choose another path"
    )
