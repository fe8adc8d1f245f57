"""CUDA-graph capture and replay of the towers' forward and backward passes.

A training step of a ViT-B/16 launches 1,300 small kernels, and launching them can take longer than
running them. A CUDA graph launches them all at once and gives the same bits. It is valid for one
shape, and as long as the model's modules stay the same and the same tensors require a gradient; the
values of the weights may change. A method that trains now one tower and now both has the graphs of
each kept. Two towers that are encoded together are replayed concurrently.
"""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
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
KEPT_SIGNATURES = 4
"""How many signatures have their graphs kept: those that were used last."""
KEPT_GRAPHS = 32
"""How many graphs of each are kept, likewise."""


@dataclass
class _GraphCache:
    """The graphs captured while the model had one signature."""

    signature: list[Any]
    num_seen: dict[Hashable, int] = field(default_factory=dict)
    retry_at: dict[Hashable, int] = field(default_factory=dict)
    graphs: dict[Hashable, CapturedGraph] = field(default_factory=dict)
    """The one that was used last is at the end."""

    def graph(self, key: Hashable) -> CapturedGraph | None:
        """The graph of these passes, if there is one, which counts as its use."""
        if (graph := self.graphs.pop(key, None)) is not None:
            self.graphs[key] = graph
        return graph

    def add(self, key: Hashable, graph: CapturedGraph) -> None:
        """Keep a graph; that which is unused for longest is freed."""
        self.graphs[key] = graph
        if len(self.graphs) > KEPT_GRAPHS:
            del self.graphs[next(iter(self.graphs))]


class GraphRecorder:
    """Replays the passes it has captured, captures those that recur, and runs the rest eagerly.

    Passes with gradients are captured with their backward pass. Passes without, such as those of an
    evaluation, are captured separately: they need less memory and do not depend on which weights
    are trainable.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._caches: dict[bool, list[_GraphCache]] = {True: [], False: []}
        """By whether gradients are on; the one that was used last is at the end."""
        self._unusable_pools: set[Any] = set()
        self._valid: dict[bool, _GraphCache] | None = None
        """Inside `unchanged`, the graphs that were found to be valid."""

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Inside, modules and what is trained stay as they are: this is checked only once."""
        self._valid = {}
        try:
            yield
        finally:
            self._valid = None

    def clear(self) -> None:
        """Forget all graphs, which frees their memory."""
        self._caches = {True: [], False: []}
        if self._valid is not None:
            self._valid = {}

    def __call__(self, passes: Sequence[ForwardPass]) -> Sequence[Tensor]:
        """The outputs of the passes, differentiable if gradients are enabled."""
        with_grad = torch.is_grad_enabled()
        cache = self._cache(with_grad)
        for forward_pass in passes:
            self._capture_if_recurring(cache, forward_pass)
        graphs = self._replayable(cache, passes)
        if graphs is None:
            return [forward_pass() for forward_pass in passes]
        return (replay_with_gradient if with_grad else replay_forward)(graphs, passes)

    def _cache(self, with_grad: bool) -> _GraphCache:
        """The graphs that are valid for the model as it is; those unused for longest are freed."""
        if self._valid is not None and with_grad in self._valid:
            return self._valid[with_grad]
        signature, caches = graph_signature(self._model, with_grad), self._caches[with_grad]
        valid = (cache for cache in reversed(caches) if same_signature(signature, cache.signature))
        cache = next(valid, None) or _GraphCache(signature)
        others = [other for other in caches if other is not cache]
        self._caches[with_grad] = [*others, cache][-KEPT_SIGNATURES:]
        if self._valid is not None:
            self._valid[with_grad] = cache
        return cache

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
            cache.add(key, graph)

    def _replayable(
        self, cache: _GraphCache, passes: Sequence[ForwardPass]
    ) -> list[CapturedGraph] | None:
        """The graphs of all passes; None unless all of them can be replayed now."""
        busy = {graph.name for graph in self._graphs() if graph.awaits_backward}
        graphs = [cache.graph(forward_pass.key) for forward_pass in passes]
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
        caches = (cache for caches in self._caches.values() for cache in caches)
        return (graph for cache in caches for graph in cache.graphs.values())


def graph_signature(model: nn.Module, with_grad: bool) -> list[Any]:
    """What a captured graph depends on: modules, weights' addresses, and what is trainable."""
    signature: list[Any] = []
    for module in all_modules(model):
        signature += (module, vars(module).get("forward"))
        for p in module._parameters.values():
            if p is not None:
                signature += (p, p.data_ptr(), with_grad and p.requires_grad)
    return signature


def same_signature(a: list[Any], b: list[Any]) -> bool:
    """Whether all entries are the same objects or equal integers."""
    return len(a) == len(b) and all(
        x is y or (type(x) is int and x == y) for x, y in zip(a, b, strict=True)
    )


def has_hooks(model: nn.Module) -> bool:
    """Whether any module has a forward hook, which must see every pass."""
    return any(m._forward_hooks or m._forward_pre_hooks for m in all_modules(model))


def all_modules(model: nn.Module) -> list[nn.Module]:
    """The model and all modules in it; one that is used in several places, several times.

    This takes a tenth of the time of `model.modules()`, which matters before every pass.
    """
    modules = [model]
    for module in modules:
        if module._modules:
            modules += [child for child in module._modules.values() if child is not None]
    return modules
