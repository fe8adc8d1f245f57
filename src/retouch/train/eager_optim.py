"""Optimizers without torch's compiler, whose import takes longer than a whole estimate.

`torch.optim.Optimizer` imports it to keep some of its methods out of compiled code.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.optim import Optimizer

_METHODS = ("add_param_group", "zero_grad")


@contextmanager
def eager_optimizers() -> Iterator[None]:
    """Inside this context optimizers are made without importing `torch._dynamo`.

    Does nothing if it is imported already. An optimizer's `step` still imports it.
    """
    owner: Any = Optimizer
    if "torch._dynamo" in sys.modules:
        yield
        return
    wrapped = {name: vars(owner)[name] for name in _METHODS}
    try:
        for name, method in wrapped.items():
            setattr(owner, name, getattr(method, "__wrapped__", method))
        yield
    finally:
        for name, method in wrapped.items():
            setattr(owner, name, method)
