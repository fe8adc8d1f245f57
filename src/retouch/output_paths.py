"""Where output goes: checked before the work whose result it will hold."""

import errno
import shutil
import tempfile
from pathlib import Path

from retouch.errors import UserError
from retouch.files import refuse_full

FULL = 100_000
"""With fewer bytes free, a disk counts as full: not even settings and results would fit."""


def check_folder(path: Path, option: str = "--out") -> None:
    """Refuse a folder, existing or not, that files cannot be written into."""
    nearest = _nearest(path)
    if not nearest.is_dir():
        raise UserError(f"{option} {path}: {nearest} is a file, not a folder; name another place")
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as why:
        if why.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _full(path, option) from None
        raise UserError(
            f"{option} {path} cannot be written ({why.strerror} in {nearest}); name another place"
        ) from None
    if free_bytes(path) < FULL:
        raise _full(path, option)


def check_new_file(path: Path, option: str = "--out") -> None:
    """Refuse a place for a new file or folder where something lies, or that cannot be written."""
    if path.resolve() == Path.cwd():
        raise UserError(f"{option} {path} is the folder that you are in; name a new one inside it")
    if path.exists():
        refuse_full(path)
    check_folder(path if path.is_dir() else path.parent, option)


def free_bytes(path: Path) -> int:
    """How much may still be written there, whether or not the folder exists yet."""
    return shutil.disk_usage(_nearest(path)).free


def _nearest(path: Path) -> Path:
    """The path itself, or the first folder above it that exists."""
    path = path.absolute()
    return next(each for each in (path, *path.parents) if each.exists() or each.is_symlink())


def _full(path: Path, option: str) -> UserError:
    return UserError(f"{option} {path}: the disk is full there; free some space, or name another")
