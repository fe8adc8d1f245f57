"""One writer per folder.

The lock is the operating system's, so it is released when the process that holds it ends, however
that happens. It is a file in the folder itself: whoever can write there finds it, by whatever path
and whatever links, and nobody needs to write elsewhere.
"""

import json
import os
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from retouch.errors import UserError
from retouch.files.output_paths import LOCK, LOCK_INFO, real_path
from retouch.text.parsing import parse_json

_ATTEMPTS = 100
_holders: dict[Path, tuple[int, int]] = {}
"""The process and thread that hold a folder's lock, for locks taken by this process."""


@dataclass
class HeldLock:
    """A lock that this process holds."""

    folder: Path
    """The folder that the lock lies in; to be set if the folder is moved while it is held."""


@contextmanager
def exclusive_lock(
    folder: str | os.PathLike[str],
    activity: str = "retouch learn",
    *,
    reentrant: bool = False,
    wait_seconds: float = 0.0,
    name: Path | None = None,
) -> Iterator[HeldLock]:
    """Hold a folder's lock, or raise a UserError that names the process that does.

    The folder is created if necessary, and removed again if nothing was written into it.

    Args:
        folder: The folder to lock.
        activity: What holds such a lock, for the error.
        reentrant: A thread that holds the lock may take it again.
        wait_seconds: How long to wait for another process.
        name: What the error calls the folder, if it is a temporary one.
    """
    folder = real_path(folder)
    holder = os.getpid(), threading.get_ident()
    if reentrant and _holders.get(folder) == holder:
        yield HeldLock(folder)
        return
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        lock = _acquire(folder, wait_seconds)
    except Timeout:
        raise UserError(
            f"{name or folder} is in use by another `{activity}` "
            f"({_describe_holder(folder / LOCK_INFO)}); wait until it ends, stop it, or choose "
            "another folder"
        ) from None
    except OSError as why:
        raise UserError(
            f"{name or folder} cannot be written ({why.strerror}); choose another folder"
        ) from None
    held = HeldLock(folder)
    _holders[folder] = holder
    try:
        _write_info(folder / LOCK_INFO)
        yield held
    finally:
        _holders.pop(folder, None)
        for file in (LOCK_INFO, LOCK):
            (held.folder / file).unlink(missing_ok=True)
        lock.release()
        with suppress(OSError):  # no longer empty
            for path in created:
                path.rmdir()


def _acquire(folder: Path, wait_seconds: float) -> FileLock:
    """Take the lock; another process may remove the empty folder at the same time."""
    lock = FileLock(folder / LOCK, timeout=wait_seconds, mode=0o666)  # for all who can write there
    if _holders.get(folder, (0, 0))[0] == os.getpid() and not wait_seconds:
        raise Timeout(str(folder / LOCK))
    for _ in range(_ATTEMPTS):
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            lock.acquire()
            return lock
    raise Timeout(str(folder / LOCK))


def _write_info(file: Path) -> None:
    """Which process this is, for one that is refused."""
    since = datetime.now().astimezone().isoformat(" ", "seconds")
    info = {"pid": os.getpid(), "host": platform.node(), "since": since}
    with suppress(OSError):
        file.write_text(json.dumps(info))


def _describe_holder(info_file: Path) -> str:
    try:
        info = parse_json(info_file.read_bytes())
        return f"process {info['pid']} on {info['host']}, since {info['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "process unknown"
