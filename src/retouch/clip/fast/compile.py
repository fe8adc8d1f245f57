"""Towers that are compiled, block by block, for a handful of shapes.

All blocks of a tower are alike, so one is compiled and the others reuse it. A compiled program is
for one shape: batches are filled up to the next that was compiled already (the same features, the
same gradients), so that a last smaller batch or a longer prompt does not start the compiler again.
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
"""Images or prompts; fewer are filled up to so many."""
MANY = 2048
"""Prompts that are encoded at a time while a model is judged, on a GPU."""
TOKENS = 16
"""Prompts are filled up to a multiple of this."""
_COMPILER = {
    # What it keeps of a block: shapes × which weights move, for all runs of a process.
    "recompile_limit": 4096,
    "accumulated_recompile_limit": 4096,
    # Torch 2.11 does not see that a weight begins to move, and takes what it compiled before: the
    # weight then gets no gradient (pytorch issue 139476). So it looks at every weight.
    "skip_tensor_guards_with_matching_dict_tags": False,
}


@dataclass
class Stopwatch:
    """How long the compiler ran."""

    seconds: float = 0.0
    _since: float = 0.0

    def start(self, _: Any) -> None:
        self._since = monotonic()

    def stop(self, _: Any) -> None:
        self.seconds += monotonic() - self._since


@contextmanager
def timed() -> Iterator[Stopwatch]:
    """While this lasts, the time that goes into compiling is counted."""
    from torch._dynamo.callback import callback_handler as told

    watch = Stopwatch()
    told.register_start_callback(watch.start)
    told.register_end_callback(watch.stop)
    try:
        yield watch
    finally:
        told.remove_start_callback(watch.start)
        told.remove_end_callback(watch.stop)


@contextmanager
def compiled(blocks: list[nn.Module], backend: Backend) -> Iterator[None]:
    """While this lasts, these blocks are compiled when they are first called with a new shape."""
    config: Any = torch._dynamo.config
    with config.patch(_COMPILER):
        for block in blocks:
            block.compile(backend=backend, dynamic=False)
        try:
            yield
        finally:
            for block in blocks:
                block._compiled_call_impl = None


def padded_batch_size(count: int) -> int:
    """A number of rows that is compiled for."""
    return max(MIN_BATCH, power_of_two(count))


def power_of_two(count: int) -> int:
    """The next one that is not smaller."""
    return 1 << (count - 1).bit_length()


def padded_eval_batch_size(count: int) -> int:
    """Of prompts: many are filled up to very many, which cost less than another shape."""
    return padded_batch_size(count) if count <= 8 * MIN_BATCH else -(-count // MANY) * MANY


def padded_length(length: int, context: int) -> int:
    return min(context, -(-length // TOKENS) * TOKENS)


def pad_rows(rows: Tensor, count: int) -> Tensor:
    """The same rows, and the last one again until there are `count`."""
    missing = count - len(rows)
    if missing <= 0:
        return rows
    return torch.cat([rows, rows[-1:].expand(missing, *rows.shape[1:])])
