"""Let some parameters move and hold the rest still, so that no gradient is computed for those."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def only(model: nn.Module, names: Collection[str]) -> Iterator[None]:
    """While this lasts, just these parameters require a gradient; afterwards all is as before."""
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in names)
    try:
        yield
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
            parameter.grad = None
