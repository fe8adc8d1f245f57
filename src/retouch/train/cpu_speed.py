"""A run made faster: less work on a CPU, and optimizers that do not import torch's compiler.

`torch.optim` imports torch's compiler to keep some methods out of compiled code, which takes longer
than a whole estimate. Nothing is compiled here but the towers, and an optimizer's step is not part
of them.
"""

import ctypes
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch
from torch.optim import Adam, AdamW, Optimizer

from retouch.clip import Clip
from retouch.clip.fast.cuda_graphs import has_hooks
from retouch.clip.fast.fast_vit import class_token_only
from retouch.methods import Settings
from retouch.train.defaults import SMALL_MODEL

# Options of glibc's `mallopt`, and their defaults.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_DEFAULTS = {_TRIM_THRESHOLD: 128 * 1024, _MMAP_MAX: 65536}


@contextmanager
def faster_on_cpu(clip: Clip, settings: Settings) -> Iterator[None]:
    """Inside this context, a run on a CPU is faster; on a GPU nothing changes.

    The last visual block of a large model is computed for its class token only, where nothing else
    of it is used: the same up to rounding. Small models are fast enough, and stay the same to the
    bit.

    Args:
        clip: The model that learns.
        settings: The settings of the run.
    """
    if clip.device.type != "cpu":
        yield
        return
    as_written = settings.compile or settings.shard or has_hooks(clip.model)
    with ExitStack() as stack:
        stack.enter_context(keep_freed_memory())
        if clip.size >= SMALL_MODEL and not as_written:
            stack.enter_context(class_token_only(clip.model, clip.image_prefix))
        yield


@contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Inside this context, memory that is freed stays with the process, for the next step to use.

    glibc returns a large tensor's memory to the system when it is freed, and the system clears
    every page of the next one: in a step that holds gigabytes of activations, and frees them all, a
    tenth of the time or more. Afterwards the memory is given back. Nothing changes with another C
    library, or where torch has its own allocator, as on Arm (mimalloc).
    """
    libc = _glibc()
    if libc is not None:
        libc.mallopt(_MMAP_MAX, 0)
        libc.mallopt(_TRIM_THRESHOLD, -1)
    try:
        yield
    finally:
        if libc is not None:
            for option, value in _DEFAULTS.items():
                libc.mallopt(option, value)
            libc.malloc_trim(0)


def _glibc() -> Any | None:
    """The C library of this process, if it is glibc."""
    try:
        libc = ctypes.CDLL(None)
        found = all(hasattr(libc, name) for name in ("gnu_get_libc_version", "mallopt"))
    except (OSError, TypeError):  # Windows has no such handle
        return None
    return libc if found else None


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
