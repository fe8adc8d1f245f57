"""Write files and folders whole or not at all."""

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from retouch.errors import UserError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""A disk that is full, a quota that is spent, a file over the limit on its size."""


def write_atomically(path: str | Path, content: bytes | str) -> None:
    """Replace `path` in one move: a crash leaves the old file or the new, never half of one."""
    path = Path(path)
    part = path.with_name(f".{path.name}.part")
    try:
        with _named(part, path), part.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """A folder beside it to write into, which takes its place when all went well."""
    refuse_full(folder)
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)  # of one that was killed
    try:
        with _named(part, folder):
            part.mkdir(parents=True)
            yield part
            _settle(part)
            part.replace(folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


@contextmanager
def _named(part: Path, path: Path) -> Iterator[None]:
    """What goes wrong is told of the file or folder itself, not of its unfinished copy.

    safetensors has an error of its own for that, which becomes an OSError as any other.
    """
    try:
        yield
    except OSError as why:
        if why.filename is not None:
            why.filename = os.fspath(why.filename).replace(str(part), str(path))
        raise
    except UserError as why:
        told = str(why).replace(str(part), str(path))
        raise type(why)(told) if told != str(why) else why from None
    except SafetensorError as why:
        code = re.search(r"\(os error (\d+)\)", str(why))
        if code is None:
            raise
        number = int(code[1])
        raise OSError(number, os.strerror(number), str(path)) from None


def refuse_full(path: Path) -> None:
    """Nothing that lies there is written over; an empty folder may be filled."""
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise UserError(f"{path} exists already; choose another name, or delete it first")


def _settle(folder: Path) -> None:
    """All files on the disk, and as readable as any other: some libraries write for one user."""
    mask = os.umask(0)
    os.umask(mask)
    for file in (path for path in folder.rglob("*") if path.is_file()):
        file.chmod(0o666 & ~mask)
        with file.open("rb") as written:
            os.fsync(written.fileno())
