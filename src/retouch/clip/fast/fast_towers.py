"""Both towers without unused work, and compiled if a backend is given."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from retouch.clip.fast.compile import Backend, CompileTimer, compiled
from retouch.clip.fast.fast_vit import compile_with, fast_vit
from retouch.clip.preprocess import NormalizeFn, normalize_pixels
from retouch.sparse.locate import block_names


@contextmanager
def fast_towers(
    model: nn.Module, prefix: str, backend: Backend | None
) -> Iterator[tuple[CompileTimer, NormalizeFn]]:
    """Inside this context the model is faster. Without a backend, nothing is compiled.

    Yields the time that compiling has taken so far, and `normalize_pixels`, compiled.

    Args:
        model: Both towers.
        prefix: What the names of the visual tower's parameters begin with.
        backend: The backend of `torch.compile`, or None.
    """
    wrap = compile_with(backend)
    blocks = [model.get_submodule(name) for name in block_names(model)]
    with fast_vit(model, prefix, wrap), compiled(blocks, backend) as timer:
        yield timer, wrap(normalize_pixels)
