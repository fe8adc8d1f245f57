"""A lock, so that two processes never write the same run.

Whoever takes it finds the folder in order, whatever a killed process was doing there.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from retouch.distributed import collectives
from retouch.files.lock import exclusive_lock
from retouch.files.output_paths import real_path
from retouch.train.run_folder.set_aside import recover

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def run_lock(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Hold the lock of a run's folder, and yield its real path.

    Call it on every rank; rank 0 takes it.
    """
    path = real_path(folder)
    with ExitStack() as held:

        def take() -> str:
            held.enter_context(exclusive_lock(path, reentrant=True))
            recover(path)
            return ""

        collectives.broadcast_str(take)
        yield path


def with_run_lock(function: Callable[P, R]) -> Callable[P, R]:
    """A decorator: hold the lock of the folder in the keyword argument `out` during the call.

    The function gets its real path: a link may lead elsewhere before the call ends.
    """

    @wraps(function)
    def locked(*args: P.args, **kwargs: P.kwargs) -> R:
        out = kwargs.get("out")
        if not isinstance(out, str | os.PathLike):
            return function(*args, **kwargs)
        with run_lock(out) as path:
            kwargs["out"] = path
            return function(*args, **kwargs)

    return locked
