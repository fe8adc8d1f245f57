"""Replace the forward passes of modules for a while.

A replacement is written for one module and reads that module's weights, so a copy of the model must
not inherit it: `drop_replaced` gives a copy the forward passes of its classes back.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

_MARK = "replaces_forward"


@contextmanager
def replaced_forward(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Inside this context, modules have these functions as their forward passes.

    Args:
        forwards: The function for each module; none of them has one yet.
    """
    for module, forward in forwards.items():
        assert "forward" not in vars(module)
        setattr(forward, _MARK, True)
        vars(module)["forward"] = forward
    try:
        yield
    finally:
        for module in forwards:
            del vars(module)["forward"]


def drop_replaced(copied: nn.Module) -> None:
    """Let a copy of a model run as it was written, whatever the original does at present.

    Args:
        copied: The copy.
    """
    for module in copied.modules():
        if getattr(vars(module).get("forward"), _MARK, False):
            del vars(module)["forward"]
