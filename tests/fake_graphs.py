"""Stands in for a CUDA graph on a CPU.

Like one, it runs a pass again with fixed tensors for inputs and outputs. `benchmarks/speed.py`
checks that real CUDA graphs give the same bits.
"""

from itertools import count
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from retouch.clip.fast import graph_capture
from retouch.clip.fast.graph_capture import CapturedGraph, ForwardPass, leaf_tensors


class FakeGraph(CapturedGraph):
    """Inputs and outputs in fixed tensors, like a CUDA graph's."""

    captured = replayed = 0

    def __init__(self, forward_pass: ForwardPass, pool: object) -> None:
        FakeGraph.captured += 1
        self.name, self._run, self._pending = forward_pass.name, forward_pass.run, None
        self._inputs = [tensor.clone() for tensor in forward_pass.inputs]
        self._graph_output = forward_pass.run(*self._inputs)
        self.leaves = leaf_tensors(self._graph_output)
        self._output = self._graph_output.detach().clone()
        self.forward = SimpleNamespace(pool=lambda: pool, replay=self._run_again)

    def _run_again(self) -> None:
        FakeGraph.replayed += 1
        with torch.enable_grad():
            self._graph_output = self._run(*self._inputs)
        self._output.copy_(self._graph_output.detach())

    def replay_backward(self, output_grad: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(self._graph_output, self.leaves, output_grad))


@pytest.fixture
def fake_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeGraph.captured = FakeGraph.replayed = 0
    monkeypatch.setattr(graph_capture, "CapturedGraph", FakeGraph)
    monkeypatch.setattr(graph_capture, "_run_concurrently", lambda _, jobs: [j() for j in jobs])
    for name in ("synchronize", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    handles = count(1)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, next(handles)))
