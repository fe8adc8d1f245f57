"""A lock, so that two processes never write the same run."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from retouch.distributed import collectives
from retouch.file_lock import exclusive_lock

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def run_lock(folder: Any) -> Iterator[None]:
    """Hold the lock of a run's folder. Call it on every rank; rank 0 takes it."""
    with ExitStack() as held:

        def take() -> str:
            held.enter_context(exclusive_lock(folder, reentrant=True))
            return ""

        collectives.broadcast_str(take)
        yield


def with_run_lock(function: Callable[P, R]) -> Callable[P, R]:
    """A decorator: hold the lock of the folder in the keyword argument `out` during the call."""

    @wraps(function)
    def locked(*args: P.args, **kwargs: P.kwargs) -> R:
        out = kwargs.get("out")
        if not isinstance(out, str | Path):
            return function(*args, **kwargs)
        with run_lock(out):
            return function(*args, **kwargs)

    return locked
