"""Check that output can be written, before the work whose result it is."""

import errno
import shutil
import tempfile
from pathlib import Path

from retouch.errors import UserError
from retouch.files import refuse_existing

MIN_FREE_BYTES = 100_000
"""With less, a disk counts as full: not even settings and results would fit."""


def check_folder(path: Path) -> None:
    """Refuse a folder, existing or not, that files cannot be written into."""
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
    if path.resolve() == Path.cwd():
        raise UserError(f"{path} is the current folder; name a new one inside it")
    if path.exists():
        refuse_existing(path)
    check_folder(path if path.is_dir() else path.parent)


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
