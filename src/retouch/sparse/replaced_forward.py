"""Replace the forward pass of a module.

Torch's hooks run before and after a forward pass; this runs in place of it. A module that is
compiled runs the replacement as it is written.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

_MARK = "_forward_is_replaced"
_ATTRIBUTES = ("forward", "_compiled_call_impl", _MARK)


class ReplacedForward:
    """A forward pass that is replaced until `remove` is called, as a hook of torch is.

    Args:
        module: The module.
        forward: Its forward pass from now on.
    """

    def __init__(self, module: nn.Module, forward: Callable[..., Any]) -> None:
        self._module = module
        self._before = {key: vars(module)[key] for key in _ATTRIBUTES if key in vars(module)}
        vars(module).update(forward=forward, _compiled_call_impl=None)

    def remove(self) -> None:
        """Restore the forward pass that the module had before."""
        for key in _ATTRIBUTES:
            vars(self._module).pop(key, None)
        vars(self._module).update(self._before)


@contextmanager
def replaced_forward(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Inside this context, modules have these functions as their forward passes.

    Such a function reads the weights of one module, so a copy of the model must not inherit it: see
    `drop_replaced`.

    Args:
        forwards: The function for each module.
    """
    handles = [ReplacedForward(module, forward) for module, forward in forwards.items()]
    for module in forwards:
        vars(module)[_MARK] = True
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def drop_replaced(copied: nn.Module) -> None:
    """Give a copy of a model that was made inside `replaced_forward` its own forward passes back.

    Args:
        copied: The copy.
    """
    for module in copied.modules():
        if vars(module).pop(_MARK, False):
            del vars(module)["forward"]
