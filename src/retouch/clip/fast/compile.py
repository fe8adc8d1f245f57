"""Compile the transformer blocks of the towers for a handful of shapes.

All blocks of a tower have the same code, so one is compiled and the others reuse the result.
Compiled code is specialized to one shape (see `clip.fast.padding`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any

import torch
from torch import nn

Backend = str | Callable[..., Any]
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
    listener: Callable[[bool], None] | None = None
    """Called with True when the compiler starts, with False when it ends."""
    _started: float = 0.0

    def start(self, _: Any) -> None:
        self._started = monotonic()
        if self.listener:
            self.listener(True)

    def stop(self, _: Any) -> None:
        self.seconds += monotonic() - self._started
        if self.listener:
            self.listener(False)


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
