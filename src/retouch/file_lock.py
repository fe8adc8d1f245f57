"""One writer per folder.

The lock is the operating system's, so it ends with the process that holds it, however that ends. It
lies beside the folder, as `.NAME.lock`: the folder itself stays empty until there is a run in it.
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

_holders: dict[Path, tuple[int, int]] = {}
"""The process and thread that hold a folder's lock, of the locks taken here."""


@contextmanager
def exclusive_lock(
    folder: str | Path, activity: str = "retouch learn", *, reentrant: bool = False
) -> Iterator[None]:
    """Hold a folder's lock, or raise a UserError that says who does.

    With `reentrant`, a thread that holds the lock may take it again.
    """
    folder = Path(folder).resolve()
    me = os.getpid(), threading.get_ident()
    if reentrant and _holders.get(folder) == me:
        yield
        return
    place = folder.with_name(f".{folder.name}.lock")
    if not os.access(place.parent, os.W_OK) and folder.is_dir():
        place = folder / ".lock"
    created = [parent for parent in place.parents if not parent.exists()]
    place.parent.mkdir(parents=True, exist_ok=True)
    holder = place.with_suffix(".json")  # a contender may truncate the lock's own file
    lock = FileLock(place, timeout=0)
    try:
        if _holders.get(folder, (0, 0))[0] == os.getpid():
            raise Timeout(str(place))
        lock.acquire()
    except Timeout:
        raise UserError(
            f"{folder} is in use by another `{activity}` ({_described(holder)}); wait until it "
            "ends, stop it, or choose another folder"
        ) from None
    _holders[folder] = me
    try:
        since = datetime.now().astimezone().isoformat(" ", "seconds")
        told = {"pid": os.getpid(), "host": platform.node(), "since": since}
        with suppress(OSError):  # only a courtesy to whoever is refused
            holder.write_text(json.dumps(told))
        yield
    finally:
        _holders.pop(folder, None)
        for file in (holder, place):
            file.unlink(missing_ok=True)
        lock.release()
        with suppress(OSError):  # not empty any more
            for parent in created:
                parent.rmdir()


def _described(holder: Path) -> str:
    try:
        told = json.loads(holder.read_text())
        return f"process {told['pid']} on {told['host']}, since {told['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "it does not say which process"
