"""The gradient of some rows of a linear layer, without that of the others.

Where whole neurons are selected, the product that gives the gradient of all rows is nine tenths
waste. While `only_rows` lasts, a layer computes as before, and its backward pass multiplies just
the chosen columns of what comes back.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn.functional import linear

from retouch.sparse.select import SparseIndex


def whole_rows(chosen: SparseIndex) -> Tensor | None:
    """The rows that are chosen, if these are whole rows of a matrix."""
    if chosen.index is None or len(chosen.shape) != 2:
        return None
    wide = chosen.shape[1]
    if not chosen.count or chosen.count % wide:
        return None
    starts = chosen.index.view(-1, wide)
    whole = starts[:, :1] + torch.arange(wide, device=starts.device)
    first = starts[:, 0]
    return first // wide if torch.equal(starts, whole) and not (first % wide).any() else None


def linear_layers(model: nn.Module, names: Iterable[str]) -> dict[str, nn.Linear]:
    """The plain linear layers whose weights have these names."""
    found = {}
    for name in names:
        owner, _, last = name.rpartition(".")
        layer = model.get_submodule(owner)
        if last == "weight" and type(layer) is nn.Linear:
            found[name] = layer
    return found


@contextmanager
def train_rows_only(layer: nn.Linear, rows: Tensor, entries: nn.Parameter) -> Iterator[None]:
    """While this lasts, `entries` (the rows, flat) gets the gradient, and the weight none."""
    flag = layer.weight.requires_grad
    layer.weight.requires_grad_(False)

    def forward(inputs: Tensor) -> Tensor:
        found: Tensor = _Rows.apply(  # type: ignore[no-untyped-call]
            inputs, layer.weight, layer.bias, rows, entries
        )
        return found

    layer.forward = forward  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del layer.forward
        layer.weight.requires_grad_(flag)


class _Rows(torch.autograd.Function):
    """A linear layer whose weight stands still, but for the rows that `entries` stands for."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, rows: Tensor, entries: Tensor
    ) -> Tensor:
        out = linear(inputs, weight, bias)
        ctx.save_for_backward(inputs.to(out.dtype), weight, rows)
        ctx.kind = inputs.dtype
        return out

    @staticmethod
    def backward(ctx: FunctionCtx, *slopes: Any) -> tuple[Tensor | None, ...]:
        (slope,) = slopes
        inputs, weight, rows = ctx.saved_tensors  # type: ignore[attr-defined]
        back = None
        if ctx.needs_input_grad[0]:  # type: ignore[attr-defined]
            back = (slope @ weight.to(slope.dtype)).to(ctx.kind)  # type: ignore[attr-defined]
        chosen = slope.flatten(0, -2).index_select(1, rows)
        own = (chosen.T @ inputs.flatten(0, -2)).to(weight.dtype)
        return back, None, None, None, own.flatten()
