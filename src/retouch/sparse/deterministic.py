"""Switch torch's deterministic algorithms on and off without importing its compiler."""

import sys

import torch


def use_deterministic(enabled: bool) -> None:
    """As `torch.use_deterministic_algorithms`, which takes seconds to import the compiler.

    The compiler is told as well, but only if it is imported already.

    Args:
        enabled: Whether to use deterministic algorithms only.
    """
    if "torch._inductor.config" in sys.modules:
        torch.use_deterministic_algorithms(enabled)
    else:
        torch._C._set_deterministic_algorithms(enabled, warn_only=False)
