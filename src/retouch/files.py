"""Write files and folders whole or not at all."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from retouch.errors import UserError


def write_atomically(path: str | Path, content: bytes | str) -> None:
    """Replace `path` in one step: a crash leaves the old file or the new, never half of one."""
    path = Path(path)
    part = path.with_name(f".{path.name}.part")
    try:
        with _errors_name(path, part), part.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder to write into, which is moved to `folder` if the block succeeds."""
    refuse_existing(folder)
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)  # left by a process that was killed
    try:
        with _errors_name(folder, part):
            part.mkdir(parents=True)
            yield part
            _sync_files(part)
            part.replace(folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


@contextmanager
def _errors_name(path: Path, part: Path) -> Iterator[None]:
    """Make errors name the file or folder itself, not its temporary copy.

    safetensors raises its own kind of error, which is turned into an OSError.
    """
    try:
        yield
    except OSError as why:
        if why.filename is not None:
            why.filename = os.fspath(why.filename).replace(str(part), str(path))
        raise
    except UserError as why:
        message = str(why).replace(str(part), str(path))
        raise type(why)(message) if message != str(why) else why from None
    except SafetensorError as why:
        code = re.search(r"\(os error (\d+)\)", str(why))
        if code is None:
            raise
        number = int(code[1])
        raise OSError(number, os.strerror(number), str(path)) from None


def refuse_existing(path: Path) -> None:
    """Refuse a path that exists, unless it is an empty folder: nothing is overwritten."""
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise UserError(f"{path} exists already; choose another name, or delete it first")


def foreign_file(path: Path) -> UserError:
    """The error where a file or folder of the user's own would be replaced."""
    return UserError(
        f"{path} exists already, and retouch does not seem to have written it; choose another "
        "folder, or move it away"
    )


def _sync_files(folder: Path) -> None:
    """Sync all files to disk, with default permissions: some libraries make them private."""
    mask = os.umask(0)
    os.umask(mask)
    for file in (path for path in folder.rglob("*") if path.is_file()):
        file.chmod(0o666 & ~mask)
        with file.open("rb") as written:
            os.fsync(written.fileno())
