"""Capture one forward pass, with its backward pass, as CUDA graphs, and replay them.

A captured graph is valid for one input shape. Its inputs, outputs and gradients have fixed
addresses, so each replay copies its inputs in and its results out. `clip.fast.cuda_graphs` decides
what is captured and when it is replayed.
"""

import logging
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from retouch.process.cuda_streams import side_stream
from retouch.process.no_gc import no_gc

T = TypeVar("T")
log = logging.getLogger("retouch")


@dataclass(frozen=True)
class ForwardPass:
    """A function of tensors on the device, such as one tower's encoder, and its inputs."""

    name: str
    """Which tower."""
    run: Callable[..., Tensor]
    inputs: Sequence[Tensor]
    function: Hashable = None
    """What is computed from the encoder's output, if anything, see `then`."""

    @property
    def key(self) -> Hashable:
        """Passes with the same key can share a graph."""
        shapes = ((tuple(tensor.shape), tensor.dtype) for tensor in self.inputs)
        return self.name, self.function, *shapes

    def then(
        self, function: Hashable, run: Callable[..., Tensor], inputs: Sequence[Tensor]
    ) -> "ForwardPass":
        """This pass followed by a function of its output, such as a loss.

        Args:
            function: Names the function and every number in it: equal ones share a graph.
            run: Takes the output and further tensors.
            inputs: These tensors.
        """
        count = len(self.inputs)

        def both(*values: Tensor) -> Tensor:
            return run(self.run(*values[:count]), *values[count:])

        return ForwardPass(self.name, both, [*self.inputs, *inputs], function)

    def __call__(self) -> Tensor:
        return self.run(*self.inputs)


class CapturedGraph:
    """One forward pass of one shape, and its backward pass if any tensor requires a gradient."""

    def __init__(self, forward_pass: ForwardPass, pool: Any) -> None:
        self.name = forward_pass.name
        self._inputs = [tensor.clone() for tensor in forward_pass.inputs]
        self._pending: weakref.ref[Any] | None = None
        self.forward, self.backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # A matrix product uses a workspace of its stream, so each tower has a stream of its own:
        # their graphs may run concurrently.
        self.stream = side_stream(self._inputs[0].device, forward_pass.name)
        with _capture(self.forward, pool, self.stream):
            output = forward_pass.run(*self._inputs)
        self._output = output.detach()
        self.leaves = leaf_tensors(output)
        if self.leaves:
            self._output_grad = torch.zeros_like(output)
            with _capture(self.backward, self.forward.pool(), self.stream):
                self._grads = torch.autograd.grad(output, self.leaves, self._output_grad)

    def replay(self, inputs: Sequence[Tensor]) -> Tensor:
        for static, tensor in zip(self._inputs, inputs, strict=True):
            static.copy_(tensor, non_blocking=True)
        self.forward.replay()
        return self._output.clone()

    def replay_backward(self, output_grad: Tensor) -> list[Tensor]:
        """The gradient of each of `leaves`; a tower that is frozen as a whole has none."""
        if not self.leaves:
            return []
        self._output_grad.copy_(output_grad)
        self.backward.replay()
        return [grad.clone() for grad in self._grads]

    @property
    def awaits_backward(self) -> bool:
        """Whether the backward pass of a replay may still run, which needs its activations."""
        return self._pending is not None and self._pending() is not None

    def set_pending(self, token: "_BackwardToken | None") -> None:
        self._pending = None if token is None else weakref.ref(token)


class _BackwardToken:
    """Alive as long as the backward pass of a replay can still be run."""


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, graphs: list[CapturedGraph], passes: Sequence[ForwardPass], *leaves: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.graphs, ctx.token = graphs, _BackwardToken()
        for graph in graphs:
            graph.set_pending(ctx.token)
        return tuple(replay_forward(graphs, passes))

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, *output_grads: Tensor) -> tuple[Tensor | None, ...]:
        graphs: list[CapturedGraph] = ctx.graphs  # type: ignore[attr-defined]
        if ctx.token is None:  # type: ignore[attr-defined]
            raise RuntimeError("a captured pass runs backward once: its activations are freed")
        ctx.token = None  # type: ignore[attr-defined]
        for graph in graphs:
            graph.set_pending(None)
        pairs = zip(graphs, output_grads, strict=True)
        jobs = [partial(graph.replay_backward, grad) for graph, grad in pairs]
        grads_per_graph = _run_concurrently(graphs, jobs)
        return None, None, *(grad for grads in grads_per_graph for grad in grads)


def replay_with_gradient(
    graphs: list[CapturedGraph], passes: Sequence[ForwardPass]
) -> Sequence[Tensor]:
    """Replay the graphs of these passes; autograd replays their backward passes."""
    leaves = [leaf for graph in graphs for leaf in graph.leaves]
    outputs: Sequence[Tensor] = _Replay.apply(graphs, passes, *leaves)  # type: ignore[no-untyped-call]
    return outputs


def replay_forward(graphs: Sequence[CapturedGraph], passes: Sequence[ForwardPass]) -> list[Tensor]:
    """Replay the graphs of these passes without gradients."""
    pairs = zip(graphs, passes, strict=True)
    jobs = [partial(graph.replay, forward_pass.inputs) for graph, forward_pass in pairs]
    return _run_concurrently(graphs, jobs)


def capture(forward_pass: ForwardPass, pool: Any, again: bool = False) -> CapturedGraph | None:
    """Capture a pass into a memory pool; None if that is impossible, as when it synchronizes.

    The first failure may pass, such as a gradient that is still held; one that happens `again` is
    worth a warning.
    """
    try:
        return CapturedGraph(forward_pass, pool)
    except RuntimeError as error:
        torch.cuda.synchronize()
        _abort_capture(torch.cuda.current_stream().device.index, pool)
        log.log(
            logging.WARNING if again else logging.DEBUG,
            "the encoder of %s is not captured as a CUDA graph, so its small kernels are launched "
            "one by one, which is slower (%s)",
            forward_pass.name,
            str(error).partition("\n")[0],
        )
        return None


def leaf_tensors(output: Tensor) -> list[Tensor]:
    """The leaves of the autograd graph of `output`: the tensors that would get a gradient."""
    leaves: dict[int, Tensor] = {}
    seen, stack = set(), [output.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if (leaf := getattr(node, "variable", None)) is not None:
            leaves[id(leaf)] = leaf
        stack += [following for following, _ in node.next_functions]
    return list(leaves.values())


@contextmanager
def _capture(graph: torch.cuda.CUDAGraph, pool: Any, stream: torch.cuda.Stream) -> Iterator[None]:
    """Capture what is launched inside this context, on the given stream.

    `torch.cuda.graph` does the same, but also frees the pinned memory that images are copied from:
    allocating it again takes the driver a quarter of a second, in which nothing is launched.
    """
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    # A graph or kernel that is freed meanwhile would end the capture with an error.
    with no_gc(), torch.cuda.stream(stream):
        # Other threads may load the next images meanwhile.
        graph.capture_begin(pool, capture_error_mode="thread_local")
        try:
            yield
        finally:
            graph.capture_end()


def _abort_capture(device: int, pool: Any) -> None:
    """Clean up what torch leaves behind after a failed capture.

    Without this, memory that was used on two streams is never freed, and drawing a random number
    raises an error.
    """
    with suppress(RuntimeError):  # raised if the capture had ended properly
        torch._C._cuda_endAllocateToPool(device, pool)
        torch._C._cuda_releasePool(device, pool)
    rng = torch.cuda.default_generators[device]
    rng.graphsafe_set_state(rng.clone_state())


def _run_concurrently(graphs: Sequence[CapturedGraph], jobs: Sequence[Callable[[], T]]) -> list[T]:
    """Run the first job on the current stream, the others on their graphs' streams."""
    current = torch.cuda.current_stream()
    side_streams = [graph.stream for graph in graphs[1:]]
    results = []
    for stream, job in zip(side_streams, jobs[1:], strict=True):
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            results.append(job())
    results = [jobs[0](), *results]
    for stream in side_streams:
        current.wait_stream(stream)
    return results
