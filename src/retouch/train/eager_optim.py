"""Optimizers without torch's compiler, whose import takes longer than a whole estimate.

`torch.optim` imports it to keep some methods out of compiled code. Nothing is compiled here but the
towers, and an optimizer's step is not part of them.
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch.optim import Adam, AdamW, Optimizer


@contextmanager
def eager_optimizers() -> Iterator[None]:
    """Inside this context Adam and AdamW work as always, without importing `torch._dynamo`.

    Does nothing if it is imported already.
    """
    if "torch._dynamo" in sys.modules:
        yield
        return
    methods = ("add_param_group", "zero_grad")
    plain: dict[tuple[Any, str], Any] = {
        (Optimizer, name): inspect.unwrap(vars(Optimizer)[name]) for name in methods
    }
    plain[Adam, "step"] = _without_gradient(inspect.unwrap(Adam.step))
    if "step" in vars(AdamW):  # torch puts a hook there when the first one is made
        plain[AdamW, "step"] = plain[Adam, "step"]
    names = (*methods, "step")
    owners: tuple[Any, ...] = (Optimizer, Adam, AdamW)
    before = {(owner, name): vars(owner).get(name) for owner in owners for name in names}
    try:
        for (owner, name), method in plain.items():
            setattr(owner, name, method)
        yield
    finally:
        for (owner, name), method in before.items():
            if method is not None:
                setattr(owner, name, method)
            elif name in vars(owner):
                delattr(owner, name)


def _without_gradient(step: Callable[..., Any]) -> Callable[..., Any]:
    """What torch wraps a step in, apart from the compiler."""

    @wraps(step)
    def run(self: Optimizer, *args: Any, **options: Any) -> Any:
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            return step(self, *args, **options)

    return run
