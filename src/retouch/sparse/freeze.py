"""Let some parameters move and hold the rest still, so that no gradient is computed for those."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def only(model: nn.Module, names: Collection[str]) -> Iterator[None]:
    """While this lasts, just these parameters require a gradient; afterwards all is as before."""
    before = [(name, p, p.requires_grad) for name, p in model.named_parameters()]
    for name, parameter, _ in before:
        parameter.requires_grad_(name in names)
    try:
        yield
    finally:
        for _, parameter, flag in before:
            parameter.requires_grad_(flag)
            parameter.grad = None
