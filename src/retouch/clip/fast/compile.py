"""Compile the transformer blocks of the towers for a handful of shapes.

All blocks of a tower have the same code, so one is compiled and the others reuse the result.
Compiled code is specialized to one shape: batches are padded to the next size of a short list (the
same features, the same gradients), so that a smaller last batch or a longer prompt does not start
the compiler again.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any

import torch
from torch import Tensor, nn

Backend = str | Callable[..., Any]
MIN_BATCH = 32
"""Smaller batches of images or prompts are padded to this size."""
EVAL_TEXT_BATCH = 2048
"""Prompts encoded at a time during evaluation on a GPU."""
LENGTH_MULTIPLE = 16
"""Prompts are padded to a multiple of this many tokens."""
_DYNAMO_CONFIG = {
    # Variants of a block that are kept: shapes × sets of trainable weights, over a process's life.
    "recompile_limit": 4096,
    "accumulated_recompile_limit": 4096,
    # Torch 2.11 does not notice that a weight has become trainable and reuses the variant compiled
    # for the frozen one, so the weight gets no gradient (pytorch issue 139476). This makes it check
    # every weight.
    "skip_tensor_guards_with_matching_dict_tags": False,
}


@dataclass
class CompileTimer:
    """How long the compiler ran."""

    seconds: float = 0.0
    _started: float = 0.0

    def start(self, _: Any) -> None:
        self._started = monotonic()

    def stop(self, _: Any) -> None:
        self.seconds += monotonic() - self._started


@contextmanager
def time_compilation() -> Iterator[CompileTimer]:
    """Measure the time spent compiling inside this context."""
    from torch._dynamo.callback import callback_handler

    timer = CompileTimer()
    callback_handler.register_start_callback(timer.start)
    callback_handler.register_end_callback(timer.stop)
    try:
        yield timer
    finally:
        callback_handler.remove_start_callback(timer.start)
        callback_handler.remove_end_callback(timer.stop)


@contextmanager
def compiled(blocks: list[nn.Module], backend: Backend | None) -> Iterator[CompileTimer]:
    """Inside this context, blocks are compiled when they are first called with a new shape.

    Yields the time that this has taken so far. Without a backend nothing is compiled, and torch's
    compiler is not imported.
    """
    if backend is None:
        yield CompileTimer()
        return
    config: Any = torch._dynamo.config
    with time_compilation() as timer, config.patch(_DYNAMO_CONFIG):
        for block in blocks:
            block.compile(backend=backend, dynamic=False)
        try:
            yield timer
        finally:
            for block in blocks:
                block._compiled_call_impl = None


def padded_batch_size(count: int) -> int:
    """The batch size that `count` rows are padded to."""
    return max(MIN_BATCH, power_of_two(count))


def power_of_two(count: int) -> int:
    """The smallest power of two that is not below `count`."""
    return 1 << (count - 1).bit_length()


def padded_eval_batch_size(count: int) -> int:
    """As `padded_batch_size`, for prompts without gradients.

    A larger batch is padded to a multiple of `EVAL_TEXT_BATCH`, which costs less than compiling
    another shape.
    """
    if count <= 8 * MIN_BATCH:
        return padded_batch_size(count)
    return -(-count // EVAL_TEXT_BATCH) * EVAL_TEXT_BATCH


def padded_length(length: int, context: int) -> int:
    """The number of tokens that a prompt is padded to, at most the model's context."""
    return min(context, -(-length // LENGTH_MULTIPLE) * LENGTH_MULTIPLE)


def pad_rows(rows: Tensor, count: int) -> Tensor:
    """Repeat the last row until there are `count`."""
    missing = count - len(rows)
    if missing <= 0:
        return rows
    return torch.cat([rows, rows[-1:].expand(missing, *rows.shape[1:])])
