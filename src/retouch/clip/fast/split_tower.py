"""Run a tower up to one of its blocks, or from that block on; or up to and from the middle of it.

The library's own forward pass runs in both cases; only some of its blocks are replaced for the
duration of a call. So this works for any tower whose blocks pass one tensor on, from each to the
next, and `splits_at` tells whether a tower does.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from retouch.sparse.replaced_forward import replaced_forward

Input = TypeVar("Input")


class _Reached(Exception):
    """Raised in place of a block's forward pass, to leave the tower with its input."""

    def __init__(self, hidden: Any) -> None:
        self.hidden = hidden


class AttentionHalf(NamedTuple):
    """The first half of a block: its attention, whose output is added to the block's input."""

    names: tuple[str, str]
    """Of the norm and the attention, within the block."""
    norm: nn.Module
    attention: nn.Module
    rest: nn.Module
    """The norm of the other half, which gets the sum."""


_NAMES = (
    ("layer_norm1", "self_attn", "layer_norm2"),  # transformers
    ("ln_1", "attn", "ln_2"),  # open_clip
)


def attention_half(block: nn.Module) -> AttentionHalf | None:
    """The first half of a block, if its library is known.

    Args:
        block: A block of a tower.
    """
    children = dict(block.named_children())
    for names in _NAMES:
        if all(name in children for name in names):
            return AttentionHalf(names[:2], *(children[name] for name in names))
    return None


def run_below(
    blocks: Sequence[nn.Module],
    first: int,
    run: Callable[[], object],
    half: AttentionHalf | None = None,
) -> Tensor | None:
    """The activations [B, T, D] that enter a block; None if it does not get one tensor.

    Args:
        blocks: The tower's blocks, in order.
        first: The index of the block.
        run: The forward pass of the tower.
        half: The first half of the block, to run it as well.
    """

    def leave(hidden: Any = None, *_: Any, **__: Any) -> Tensor:
        raise _Reached(hidden)

    try:
        with replaced_forward({half.rest if half else blocks[first]: leave}):
            run()
    except _Reached as reached:
        return reached.hidden if isinstance(reached.hidden, Tensor) else None
    return None


@contextmanager
def starting_at(
    blocks: Sequence[nn.Module],
    first: int,
    hidden: Tensor,
    half: AttentionHalf | None = None,
) -> Iterator[None]:
    """Inside this context the blocks below `first` are skipped, and that block gets `hidden`.

    What the tower computes before its blocks is ignored, so its input may be anything.

    Args:
        blocks: The tower's blocks, in order.
        first: The index of the block.
        hidden: What `run_below` returned.
        half: The first half of the block, if `hidden` is what its other half gets. Its attention
            then adds nothing.
    """

    def skip(inputs: Tensor, *_: Any, **__: Any) -> Tensor:
        return inputs

    def resume(*_: Any, **__: Any) -> Tensor:
        return hidden

    def nothing(*_: Any, **__: Any) -> tuple[Tensor, None]:
        return hidden.new_zeros(1), None

    forwards: dict[nn.Module, Callable[..., Any]] = dict.fromkeys(blocks[: first - 1], skip)
    forwards[blocks[first - 1]] = resume
    if half is not None:
        forwards |= {half.norm: skip, half.attention: nothing}
        forwards[blocks[first]] = blocks[first].forward  # not compiled: half is replaced
    with replaced_forward(forwards):
        yield


@torch.no_grad()
def splits_at(
    blocks: Sequence[nn.Module],
    first: int,
    encode: Callable[[Input], Tensor],
    inputs: Input,
    blank: Input,
    half: AttentionHalf | None = None,
    rows: int | None = None,
) -> bool:
    """Whether running a tower in two parts gives the same features as running it whole.

    Args:
        blocks: The tower's blocks, in order.
        first: The index of the block to split at.
        encode: The tower's forward pass.
        inputs: Some images or prompts.
        blank: What `encode` gets in place of them where the blocks have their own input.
        half: The first half of that block, to split after it.
        rows: How many rows the activations must have. None: any number.
    """
    hidden = run_below(blocks, first, lambda: encode(inputs), half)
    if hidden is None or rows not in (None, len(hidden)):
        return False
    whole = encode(inputs)
    try:
        with starting_at(blocks, first, hidden, half):
            return torch.equal(encode(blank), whole)
    except (TypeError, ValueError, IndexError, RuntimeError):  # blocks are used differently
        return False
