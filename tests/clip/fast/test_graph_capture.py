"""Capturing a CUDA graph: what happens around it, tested on a CPU."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import pytest
import torch

from retouch.clip.fast import graph_capture
from retouch.clip.fast.graph_capture import leaf_tensors


@pytest.mark.parametrize("fails", [False, True])
def test_a_capture_always_returns_to_its_stream(fails: bool, monkeypatch: pytest.MonkeyPatch):
    """It frees the GPU's cached memory first, but not the pinned memory of images.

    Garbage waits, as freeing another graph meanwhile would end the capture with an error.
    """

    class Graph:
        def capture_begin(self, pool: object, capture_error_mode: str) -> None:
            events.append((pool, capture_error_mode))

        def capture_end(self) -> None:
            events.append("end")
            if fails:
                raise RuntimeError("capture was aborted")

    @contextmanager
    def on_stream(stream: str) -> Iterator[None]:
        events.append(stream)
        try:
            yield
        finally:
            events.append("back")

    events: list[object] = []
    monkeypatch.setattr(torch.cuda, "stream", on_stream)
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, partial(events.append, name))
    empty_host = partial(events.append, "host")
    monkeypatch.setattr(torch._C, "_host_emptyCache", empty_host, raising=False)
    expected = pytest.raises(RuntimeError, match="was aborted") if fails else nullcontext()
    with expected, graph_capture._capture(Graph(), (0, 1), "side"):
        events.append("run")
        assert not gc.isenabled()
        if fails:
            raise RuntimeError("somebody holds a gradient")
    begun = ["synchronize", "empty_cache", "side", ((0, 1), "thread_local")]
    assert events == [*begun, "run", "end", "back"]
    assert gc.isenabled()


def test_leaf_tensors():
    a, b = (torch.ones(3, requires_grad=True) for _ in range(2))
    leaves = leaf_tensors((a * 2 + (b * a).sum()).detach() + a * b + a.exp())
    assert {id(leaf) for leaf in leaves} == {id(a), id(b)}
    assert leaf_tensors(torch.ones(1)) == []
