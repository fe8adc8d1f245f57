"""Coordination through the job's key-value store, which involves no device."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from hashlib import sha256
from time import monotonic, sleep
from typing import Any

import torch.distributed as dist

from retouch.distributed.collectives.world import (
    collective_device,
    is_rank0,
    run_collective,
    world_size,
)

ERROR_REPORT_SECONDS = 5.0
"""How long rank 0 waits for others that may be about to report the same error."""

_rank0_first_calls = 0


@contextmanager
def rank0_first() -> Iterator[None]:
    """Run the block on rank 0 first; the other ranks wait for its end, however long it takes."""
    global _rank0_first_calls
    if collective_device() is None:
        yield
        return
    _rank0_first_calls += 1
    store, key = _store(), f"rank0_first:{_rank0_first_calls}"
    if not is_rank0():
        run_collective(store.wait, [key], timedelta(days=7))
    try:
        yield
    finally:
        if is_rank0():
            store.set(key, "done")


def reports_error(message: str) -> bool:
    """Whether this rank should report an error: an error on several ranks is reported once.

    Rank 0 may host the store, and the count is lost when it exits; so it waits a little for other
    ranks that may be about to see the same error.
    """
    if collective_device() is None:
        return True
    try:
        store = _store()
        key = f"error:{sha256(message.encode()).hexdigest()}"
        earlier_reports = store.add(key, 1) - 1
        deadline = monotonic() + ERROR_REPORT_SECONDS
        while is_rank0() and store.add(key, 0) < world_size() and monotonic() < deadline:
            sleep(0.01)
        return bool(earlier_reports == 0)
    except RuntimeError:  # the rank that hosts the store is gone
        return True


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()
