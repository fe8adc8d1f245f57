"""CUDA-graph capture and replay of the towers' forward and backward passes.

A training step of a ViT-B/16 launches 1,300 small kernels, and launching them can take longer than
running them. A CUDA graph launches them all at once and gives the same bits. It is valid for one
shape, and as long as the model's modules stay the same and the same tensors require a gradient; the
values of the weights may change. Two towers that are encoded together are replayed concurrently.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from retouch.clip.fast.graph_capture import (
    CapturedGraph,
    ForwardPass,
    capture,
    replay_forward,
    replay_with_gradient,
)

WARMUP_PASSES = 2
"""How often a pass runs eagerly (which also compiles it) before it is captured."""
RETRY_FACTOR = 3
"""After each failed capture, this many times as many passes are awaited before the next try."""


@dataclass
class _GraphCache:
    """The graphs captured while the model had one signature."""

    signature: list[Any] = field(default_factory=list)
    num_seen: dict[Hashable, int] = field(default_factory=dict)
    retry_at: dict[Hashable, int] = field(default_factory=dict)
    graphs: dict[Hashable, CapturedGraph] = field(default_factory=dict)


class GraphRecorder:
    """Replays the passes it has captured, captures those that recur, and runs the rest eagerly.

    Passes with gradients are captured with their backward pass. Passes without, such as those of an
    evaluation, are captured separately: they need less memory and do not depend on which weights
    are trainable.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._caches = {True: _GraphCache(), False: _GraphCache()}  # by whether gradients are on
        self._unusable_pools: set[Any] = set()

    def clear(self) -> None:
        """Forget all graphs, which frees their memory."""
        self._caches = {True: _GraphCache(), False: _GraphCache()}

    def __call__(self, passes: Sequence[ForwardPass]) -> Sequence[Tensor]:
        """The outputs of the passes, differentiable if gradients are enabled."""
        with_grad = torch.is_grad_enabled()
        signature = graph_signature(self._model, with_grad)
        if not same_signature(signature, self._caches[with_grad].signature):
            self._caches[with_grad] = _GraphCache(signature)  # frees the graphs' memory
        cache = self._caches[with_grad]
        for forward_pass in passes:
            self._capture_if_recurring(cache, forward_pass)
        graphs = self._replayable(cache, passes)
        if graphs is None:
            return [forward_pass() for forward_pass in passes]
        return (replay_with_gradient if with_grad else replay_forward)(graphs, passes)

    def _capture_if_recurring(self, cache: _GraphCache, forward_pass: ForwardPass) -> None:
        """Capture a pass that was seen often enough; if that fails, retry at growing intervals.

        By then the obstacle may be gone, such as a gradient that somebody still holds.
        """
        key = forward_pass.key
        if key in cache.graphs:
            return
        num_seen = cache.num_seen[key] = cache.num_seen.get(key, 0) + 1
        if num_seen < cache.retry_at.get(key, WARMUP_PASSES + 1):
            return
        again, pool = key in cache.retry_at, self._pool(forward_pass.name)
        if (graph := capture(forward_pass, pool, again)) is None:
            cache.retry_at[key] = RETRY_FACTOR * num_seen
            self._unusable_pools.add(pool)
        else:
            cache.graphs[key] = graph

    def _replayable(
        self, cache: _GraphCache, passes: Sequence[ForwardPass]
    ) -> list[CapturedGraph] | None:
        """The graphs of all passes; None unless all of them can be replayed now."""
        busy = {graph.name for graph in self._graphs() if graph.awaits_backward}
        graphs = [cache.graphs.get(forward_pass.key) for forward_pass in passes]
        free = [graph for graph in graphs if graph is not None and graph.name not in busy]
        return free if len(free) == len(graphs) else None

    def _pool(self, name: str) -> Any:
        """The memory pool that a tower's graphs share, since no two are in use at a time.

        After a failed capture, torch's allocator of pinned memory goes on recording to its pool and
        refuses another capture into it.
        """
        pools = (graph.forward.pool() for graph in self._graphs() if graph.name == name)
        usable = (pool for pool in pools if pool not in self._unusable_pools)
        return next(usable, None) or torch.cuda.graph_pool_handle()

    def _graphs(self) -> Iterator[CapturedGraph]:
        return (graph for cache in self._caches.values() for graph in cache.graphs.values())


def graph_signature(model: nn.Module, with_grad: bool) -> list[Any]:
    """What a captured graph depends on: modules, weights' addresses, and what is trainable."""
    signature: list[Any] = []
    for module in model.modules():
        signature += [module, vars(module).get("forward")]
        for p in module._parameters.values():
            signature += [] if p is None else [p, p.data_ptr(), with_grad and p.requires_grad]
    return signature


def same_signature(a: list[Any], b: list[Any]) -> bool:
    """Whether all entries are the same objects or equal integers."""
    return len(a) == len(b) and all(
        x is y or (type(x) is int and x == y) for x, y in zip(a, b, strict=True)
    )


def has_hooks(model: nn.Module) -> bool:
    """Whether any module has a forward hook, which must see every pass."""
    return any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
