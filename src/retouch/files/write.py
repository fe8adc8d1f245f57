"""Write files and folders whole or not at all."""

import errno
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO

from safetensors import SafetensorError

from retouch.errors import UserError
from retouch.files.lock import exclusive_lock
from retouch.files.output_paths import (
    LOCK,
    LOCK_INFO,
    SYSTEM_FILES,
    foreign_file,
    is_empty,
    real_path,
    refuse_existing,
)

try:
    import fcntl
except ImportError:  # Windows, where two writers of one file fail instead of waiting
    fcntl = None  # type: ignore[assignment]


def write_atomically(path: str | Path, content: bytes | str) -> None:
    """Replace `path` in one step: a crash leaves the old file or the new, never half of one.

    Of two processes that write the same file, the second waits: the file is always one of theirs.
    """
    path = Path(path)
    if path.is_dir():
        raise UserError(f"{path} is a folder; give the path of a file in it")
    if not path.parent.is_dir():
        problem = "is a file" if path.parent.exists() else "does not exist"
        raise UserError(f"{path} cannot be written: {path.parent} {problem}; give another folder")
    part = path.with_name(f".{path.name}.part")
    with _errors_name(path, part), _open_alone(part) as file:
        try:
            file.truncate(0)  # what a process that was killed left behind
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


@contextmanager
def _open_alone(path: Path) -> Iterator[BinaryIO]:
    """Open a file that other processes may open, too, and wait until this one has it alone."""
    while True:
        with path.open("ab") as file:
            if fcntl is not None:
                with suppress(OSError):  # a file system without locks
                    fcntl.flock(file, fcntl.LOCK_EX)
            if _is_at(file, path):
                yield file
                return


def _is_at(file: BinaryIO, path: Path) -> bool:
    """Whether an open file is still the one at this path: who had it before may have moved it."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder to write into, which is moved to `folder` if the block succeeds.

    It is locked: a second process that would write to `folder` meanwhile is refused.
    """
    refuse_existing(folder)
    target = real_path(folder)
    part = target.with_name(f".{target.name}.part")
    if part.exists() and not (part.is_dir() and (is_empty(part) or (part / LOCK).exists())):
        raise foreign_file(part)
    try:
        with exclusive_lock(part, "retouch", name=folder) as lock:
            refuse_existing(folder)  # another process may have written it meanwhile
            _clear(part)  # left by a process that was killed
            with written_whole(part, folder):
                yield part
            _move_folder(part, target)
            lock.folder = target
    finally:
        with suppress(OSError):
            part.rmdir()


@contextmanager
def written_whole(part: Path, folder: Path) -> Iterator[None]:
    """Fill a temporary folder `part`, and flush it to disk; it is emptied if that fails.

    Errors name `folder`, for which it is written.
    """
    try:
        with _errors_name(folder, part):
            yield
            _sync_files(part)
    except BaseException:
        _clear(part)
        raise


def replace_folder(part: Path, folder: Path, patterns: Sequence[str]) -> None:
    """Move a folder that was written to its place; see `delete_folder` for what was there."""
    delete_folder(folder, patterns)
    part.rename(folder)


def delete_folder(folder: Path, patterns: Sequence[str]) -> None:
    """Delete a folder of our own; with a file in it that matches no pattern, it is refused."""
    if not folder.exists():
        return
    for path in sorted(folder.iterdir()):
        if not any(fnmatchcase(path.name, pattern) for pattern in (*patterns, *SYSTEM_FILES)):
            raise foreign_file(path)
    shutil.rmtree(folder)


def _move_folder(part: Path, folder: Path) -> None:
    """Move a folder to its place, where at most an empty one is."""
    if folder.is_dir():
        with exclusive_lock(folder, "retouch"):  # which removes what a killed process left
            for name in set(SYSTEM_FILES) - {LOCK, LOCK_INFO}:
                (folder / name).unlink(missing_ok=True)
    try:
        part.replace(folder)
    except OSError as why:
        if why.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        raise UserError(
            f"another process has written to {folder} meanwhile; choose another folder"
        ) from None


def _clear(folder: Path) -> None:
    """Delete what a folder of our own holds, except its lock."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name not in SYSTEM_FILES:
            path.unlink(missing_ok=True)


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


def _sync_files(folder: Path) -> None:
    """Sync all files to disk, with default permissions: some libraries make them private."""
    mask = os.umask(0)
    os.umask(mask)
    for file in (path for path in folder.rglob("*") if path.is_file()):
        if file.name not in SYSTEM_FILES:
            file.chmod(0o666 & ~mask)
        with file.open("rb") as written:
            os.fsync(written.fileno())
