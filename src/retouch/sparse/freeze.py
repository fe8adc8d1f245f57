"""Let some parameters move and hold the rest still, so that no gradient is computed for those."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def trainable_only(model: nn.Module, names: Collection[str]) -> Iterator[None]:
    """While this lasts, just these parameters require a gradient; afterwards all is as before."""
    before = [(p, p.requires_grad, name in names) for name, p in model.named_parameters()]
    changed = [(p, flag) for p, flag, moves in before if flag != moves]
    for parameter, flag in changed:
        parameter.requires_grad_(not flag)
    try:
        yield
    finally:
        for parameter, _, _ in before:
            parameter.grad = None
        for parameter, flag in changed:
            parameter.requires_grad_(flag)
