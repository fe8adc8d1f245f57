"""One writer per folder.

The lock is the operating system's, so it is released when the process that holds it ends, however
that happens. It is next to the folder, as `.NAME.lock`: the folder itself stays empty until a run
writes to it.
"""

import json
import os
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from retouch.errors import UserError
from retouch.parsing import parse_json

_holders: dict[Path, tuple[int, int]] = {}
"""The process and thread that hold a folder's lock, for locks taken by this process."""


@contextmanager
def exclusive_lock(
    folder: str | Path, activity: str = "retouch learn", *, reentrant: bool = False
) -> Iterator[None]:
    """Hold a folder's lock, or raise a UserError that names the process that does.

    With `reentrant`, a thread that holds the lock may take it again.
    """
    folder = Path(folder).resolve()
    holder = os.getpid(), threading.get_ident()
    if reentrant and _holders.get(folder) == holder:
        yield
        return
    lock_file = folder.with_name(f".{folder.name}.lock")
    if not os.access(lock_file.parent, os.W_OK) and folder.is_dir():
        lock_file = folder / ".lock"
    created = [parent for parent in lock_file.parents if not parent.exists()]
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    info_file = lock_file.with_suffix(".json")  # a contender may truncate the lock file itself
    lock = FileLock(lock_file, timeout=0)
    try:
        if _holders.get(folder, (0, 0))[0] == os.getpid():
            raise Timeout(str(lock_file))
        lock.acquire()
    except Timeout:
        raise UserError(
            f"{folder} is in use by another `{activity}` ({_describe_holder(info_file)}); wait "
            "until it ends, stop it, or choose another folder"
        ) from None
    _holders[folder] = holder
    try:
        since = datetime.now().astimezone().isoformat(" ", "seconds")
        info = {"pid": os.getpid(), "host": platform.node(), "since": since}
        with suppress(OSError):  # only informs a process that is refused
            info_file.write_text(json.dumps(info))
        yield
    finally:
        _holders.pop(folder, None)
        for file in (info_file, lock_file):
            file.unlink(missing_ok=True)
        lock.release()
        with suppress(OSError):  # no longer empty
            for parent in created:
                parent.rmdir()


def _describe_holder(info_file: Path) -> str:
    try:
        info = parse_json(info_file.read_bytes())
        return f"process {info['pid']} on {info['host']}, since {info['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "process unknown"
