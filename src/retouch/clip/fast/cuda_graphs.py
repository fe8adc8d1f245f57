"""Passes through the towers that are recorded on the GPU, forth and back, and played again.

A step of a ViT-B/16 starts 1,300 small programs, and starting them can take longer than running
them. A recording (a CUDA graph) starts them all at once, and gives the same bits. It holds for one
shape, and as long as the towers are built the same and the same tensors want a gradient; the values
of the weights may change. Two towers that were asked for together are played side by side.
"""

import logging
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from retouch.distributed.cuda_streams import side_stream

T = TypeVar("T")
log = logging.getLogger("retouch")

WARMUP_PASSES = 2
"""So often a pass runs as usual (which also compiles it) before it is worth recording."""


@dataclass(frozen=True)
class ForwardPass:
    """Something that a tower makes of tensors on its device."""

    name: str
    run: Callable[..., Tensor]
    inputs: Sequence[Tensor]

    @property
    def key(self) -> Hashable:
        return self.name, *((tuple(tensor.shape), tensor.dtype) for tensor in self.inputs)

    def __call__(self) -> Tensor:
        return self.run(*self.inputs)


@dataclass
class _Shelf:
    """What was recorded of towers that are built like this."""

    built: list[Any] = field(default_factory=list)
    seen: dict[Hashable, int] = field(default_factory=dict)
    next: dict[Hashable, int] = field(default_factory=dict)
    recordings: dict[Hashable, "CapturedGraph"] = field(default_factory=dict)


class GraphRecorder:
    """Plays what it has recorded, records what comes often, and runs the rest as usual.

    Passes whose gradient is wanted are recorded with their way back. Others, such as those of a
    judging, are recorded apart: they need less, and do not care which weights move.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._shelves = {True: _Shelf(), False: _Shelf()}

    def __call__(self, passes: Sequence[ForwardPass]) -> Sequence[Tensor]:
        """What the passes give; their gradients reach whatever was used."""
        back = torch.is_grad_enabled()
        built = graph_signature(self._model, back)
        if not same_signature(built, self._shelves[back].built):
            self._shelves[back] = _Shelf(built)  # the memory of its recordings is given back
        shelf = self._shelves[back]
        for each in passes:
            self._listen(shelf, each)
        there = self._ready(shelf, passes)
        if there is None:
            return [each() for each in passes]
        if not back:
            return _play(there, passes)
        leaves = [leaf for recording in there for leaf in recording.leaves]
        played: Sequence[Tensor] = _Play.apply(there, passes, *leaves)  # type: ignore[no-untyped-call]
        return played

    def _listen(self, shelf: _Shelf, each: ForwardPass) -> None:
        """Record a pass that has come often enough; one that would not, later and later again.

        What stands in its way may be gone then, such as a gradient that somebody still holds.
        """
        if each.key in shelf.recordings:
            return
        seen = shelf.seen[each.key] = shelf.seen.get(each.key, 0) + 1
        if seen < shelf.next.get(each.key, WARMUP_PASSES + 1):
            return
        if (made := _record(each, self._pool(each.name))) is None:
            shelf.next[each.key] = 3 * seen
        else:
            shelf.recordings[each.key] = made

    def _ready(self, shelf: _Shelf, passes: Sequence[ForwardPass]) -> "list[CapturedGraph] | None":
        """The recordings of all passes; None unless all can be played now."""
        busy = {each.name for each in self._all() if each.waits}
        found = [shelf.recordings.get(each.key) for each in passes]
        free = [each for each in found if each is not None and each.name not in busy]
        return free if len(free) == len(found) else None

    def _pool(self, name: str) -> Any:
        """Recordings of one tower share their memory: no two are under way at the same time."""
        return next((each.forward.pool() for each in self._all() if each.name == name), None)

    def _all(self) -> "Iterator[CapturedGraph]":
        return (each for shelf in self._shelves.values() for each in shelf.recordings.values())


class CapturedGraph:
    """A pass of one shape: its inputs, outputs and gradients lie at fixed places."""

    def __init__(self, each: ForwardPass, pool: Any) -> None:
        self.name = each.name
        self._inputs = [tensor.clone() for tensor in each.inputs]
        self._open: weakref.ref[Any] | None = None
        self.forward, self.backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # A product of matrices takes notes in memory of its stream, so each tower has its own: they
        # may be played side by side.
        self.stream = side_stream(self._inputs[0].device, each.name)
        with _onto(self.forward, pool, self.stream):
            out = each.run(*self._inputs)
        self._out = out.detach()
        self.leaves = leaf_tensors(out)
        if self.leaves:
            self._slope = torch.zeros_like(out)
            with _onto(self.backward, self.forward.pool(), self.stream):
                self._slopes = torch.autograd.grad(out, self.leaves, self._slope)

    def replay(self, inputs: Sequence[Tensor]) -> Tensor:
        for place, tensor in zip(self._inputs, inputs, strict=True):
            place.copy_(tensor, non_blocking=True)
        self.forward.replay()
        return self._out.clone()

    def replay_backward(self, slope: Tensor) -> list[Tensor]:
        self._slope.copy_(slope)
        self.backward.replay()
        return [slope.clone() for slope in self._slopes]

    @property
    def waits(self) -> bool:
        """Whether a pass still wants to go back, so that what it left behind must stay."""
        return self._open is not None and self._open() is not None

    def open(self, token: "_Token | None") -> None:
        self._open = None if token is None else weakref.ref(token)


class _Token:
    """Lives as long as somebody can still ask for the gradient of a pass."""


class _Play(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, there: list[CapturedGraph], passes: Sequence[ForwardPass], *leaves: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.there, ctx.token = there, _Token()
        for recording in there:
            recording.open(ctx.token)
        return tuple(_play(there, passes))

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        there: list[CapturedGraph] = ctx.there  # type: ignore[attr-defined]
        if ctx.token is None:  # type: ignore[attr-defined]
            raise RuntimeError("a recorded pass goes back once: what it left behind is used up")
        ctx.token = None  # type: ignore[attr-defined]
        for recording in there:
            recording.open(None)
        jobs = [partial(r.replay_backward, slope) for r, slope in zip(there, slopes, strict=True)]
        found = _side_by_side(there, jobs)
        return None, None, *(slope for each in found for slope in each)


def graph_signature(model: nn.Module, back: bool) -> list[Any]:
    """What a recording depends on; which weights move, if there is a way back."""
    found: list[Any] = []
    for module in model.modules():
        found += [module, vars(module).get("forward")]
        for p in module._parameters.values():
            found += [] if p is None else [p, p.data_ptr(), back and p.requires_grad]
    return found


def same_signature(a: list[Any], b: list[Any]) -> bool:
    """The very same objects, or equal numbers."""
    return len(a) == len(b) and all(
        x is y or (type(x) is int and x == y) for x, y in zip(a, b, strict=True)
    )


def has_hooks(model: nn.Module) -> bool:
    """Whether somebody wants to see every pass, so that it must run as it was written."""
    return any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def leaf_tensors(out: Tensor) -> list[Tensor]:
    """The tensors that a gradient of `out` would reach, whoever holds them."""
    found: dict[int, Tensor] = {}
    seen, todo = set(), [out.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if (leaf := getattr(node, "variable", None)) is not None:
            found[id(leaf)] = leaf
        todo += [following for following, _ in node.next_functions]
    return list(found.values())


@contextmanager
def _onto(graph: torch.cuda.CUDAGraph, pool: Any, beside: torch.cuda.Stream) -> Iterator[None]:
    """Record what is asked for now, on a stream of its own.

    So does `torch.cuda.graph`, which also gives back the memory that images are sent from: to have
    it again takes the driver a quarter of a second, in which it starts nothing.
    """
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    with torch.cuda.stream(beside):
        # Other threads may load the next images meanwhile.
        graph.capture_begin(pool, capture_error_mode="thread_local")
        try:
            yield
        finally:
            graph.capture_end()


def _record(each: ForwardPass, pool: Any) -> CapturedGraph | None:
    """None where the pass cannot be recorded, because it looks at values on the way."""
    pool = pool or torch.cuda.graph_pool_handle()
    try:
        return CapturedGraph(each, pool)
    except RuntimeError as why:
        torch.cuda.synchronize()
        _give_up(torch.cuda.current_stream().device.index, pool)
        log.debug("%s cannot be recorded: %s", each.key, why)
        return None


def _give_up(device: int, pool: Any) -> None:
    """End a recording that failed, of which torch leaves half behind.

    Without this, memory that two streams used is never free again, and whoever draws a random
    number is refused.
    """
    with suppress(RuntimeError):  # had it ended as it should, there is nothing to end
        torch._C._cuda_endAllocateToPool(device, pool)
        torch._C._cuda_releasePool(device, pool)
    rng = torch.cuda.default_generators[device]
    rng.graphsafe_set_state(rng.clone_state())


def _play(there: Sequence[CapturedGraph], passes: Sequence[ForwardPass]) -> list[Tensor]:
    jobs = [partial(r.replay, each.inputs) for r, each in zip(there, passes, strict=True)]
    return _side_by_side(there, jobs)


def _side_by_side(there: Sequence[CapturedGraph], jobs: Sequence[Callable[[], T]]) -> list[T]:
    """The first on the stream at hand, the others on their own beside it."""
    here = torch.cuda.current_stream()
    beside = [recording.stream for recording in there[1:]]
    found = []
    for other, job in zip(beside, jobs[1:], strict=True):
        other.wait_stream(here)
        with torch.cuda.stream(other):
            found.append(job())
    found = [jobs[0](), *found]
    for other in beside:
        here.wait_stream(other)
    return found
