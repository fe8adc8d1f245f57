"""Loading in advance."""

import threading
import time

import pytest

from retouch.data.loading.prefetch import prefetch
from retouch.errors import UserError


def test_prefetch_keeps_the_order_and_loads_in_advance():
    loaded = []
    results = prefetch(lambda i: loaded.append(i) or i * i, iter(range(20)), depth=3)
    assert next(results) == (0, 0)
    deadline = time.monotonic() + 5
    while len(loaded) < 4 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert loaded == [0, 1, 2, 3]
    assert list(results) == [(i, i * i) for i in range(1, 20)]


def test_prefetch_starts_before_the_first_next():
    started = threading.Event()
    results = prefetch(lambda _: started.set(), range(3))
    assert started.wait(5)
    assert len(list(results)) == 3


def test_prefetch_raises_errors_and_ends_its_threads():
    def load(i: int) -> int:
        if i == 3:
            raise UserError("no more")
        return i

    loaded = []
    with pytest.raises(UserError, match="no more"):
        loaded += [i for i, _ in prefetch(load, range(10))]
    results = prefetch(load, range(3))
    next(results)
    results.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("prefetch")]
