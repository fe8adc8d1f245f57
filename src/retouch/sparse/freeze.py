"""Train some parameters and freeze the rest, so that no gradient is computed for those."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from torch import nn

from retouch.arguments import check_arguments


@contextmanager
@check_arguments()
def trainable_only(model: nn.Module, names: Collection[str]) -> Iterator[None]:
    """Within the block only some parameters require a gradient; then all is as before.

    Args:
        model: Any torch module.
        names: Names of the parameters to train.
    """
    parameters = dict(model.named_parameters())
    changed = [
        (p, p.requires_grad) for name, p in parameters.items() if p.requires_grad != (name in names)
    ]
    for parameter, requires_grad in changed:
        parameter.requires_grad_(not requires_grad)
    try:
        yield
    finally:
        for parameter in parameters.values():
            parameter.grad = None
        for parameter, requires_grad in changed:
            parameter.requires_grad_(requires_grad)
