"""The gradient of some rows of a linear layer, without computing that of the others.

If whole neurons are selected, nine tenths of the product that gives the weight's gradient are
wasted. Within `train_rows_only`, a layer's forward pass is unchanged, and its backward pass
multiplies only the selected columns of the output gradient.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn.functional import linear

from retouch.arguments import check_arguments
from retouch.sparse.locate import module_of
from retouch.sparse.replaced_forward import replaced_forward
from retouch.sparse.select import SparseIndex


def whole_rows(index: SparseIndex) -> Tensor | None:
    """The selected rows, if the selection consists of whole rows of a matrix."""
    if index.index is None or len(index.shape) != 2:
        return None
    width = index.shape[1]
    if not index.count or index.count % width:
        return None
    positions = index.index.view(-1, width)
    first = positions[:, 0]
    contiguous = first[:, None] + torch.arange(width, device=positions.device)
    if not torch.equal(positions, contiguous) or (first % width).any():
        return None
    return first // width


@check_arguments()
def linear_layers(model: nn.Module, names: Iterable[str]) -> dict[str, nn.Linear]:
    """The plain linear layers that have these weights, by the weight's name.

    One whose forward pass was replaced is not plain.

    Args:
        model: Any torch module.
        names: Names of parameters.
    """
    layers = {}
    for name in names:
        module = module_of(model, name)
        is_weight = name.rpartition(".")[2] == "weight"
        if is_weight and type(module) is nn.Linear and "forward" not in vars(module):
            layers[name] = module
    return layers


@contextmanager
def train_rows_only(layer: nn.Linear, rows: Tensor, entries: nn.Parameter) -> Iterator[None]:
    """Within the block the layer's calls give `entries` (the rows, flat) a gradient.

    The weight gets none from them, but still does from whatever else uses it.
    """

    def forward(inputs: Tensor) -> Tensor:
        output: Tensor = _RowLinear.apply(  # type: ignore[no-untyped-call]
            inputs, layer.weight, layer.bias, rows, entries
        )
        return output

    with replaced_forward({layer: forward}):
        yield


class _RowLinear(torch.autograd.Function):
    """A linear layer with a frozen weight; the gradient of some of its rows goes to `entries`.

    The bias has its whole gradient, if it is trained.
    """

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None, rows: Tensor, entries: Tensor
    ) -> Tensor:
        output = linear(inputs, weight, bias)
        ctx.save_for_backward(inputs.to(output.dtype), weight, rows)
        ctx.input_dtype = inputs.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        return output

    @staticmethod
    def backward(ctx: FunctionCtx, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        (grad,) = grad_outputs
        inputs, weight, rows = ctx.saved_tensors  # type: ignore[attr-defined]
        grad_inputs = grad_bias = None
        if ctx.needs_input_grad[0]:  # type: ignore[attr-defined]
            dtype = ctx.input_dtype  # type: ignore[attr-defined]
            grad_inputs = (grad @ weight.to(grad.dtype)).to(dtype)
        flat = grad.flatten(0, -2)
        if ctx.needs_input_grad[2]:  # type: ignore[attr-defined]
            grad_bias = flat.sum(dim=0).to(ctx.bias_dtype)  # type: ignore[attr-defined]
        grad_rows = flat.index_select(1, rows)
        grad_entries = (grad_rows.T @ inputs.flatten(0, -2)).to(weight.dtype)
        return grad_inputs, None, grad_bias, None, grad_entries.flatten()
