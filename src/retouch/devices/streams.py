"""What a GPU does beside its main work."""

from functools import cache

import torch


@cache
def stream(device: torch.device, name: str) -> torch.cuda.Stream:
    """Always the same one of a name: each stream keeps memory of its own."""
    return torch.cuda.Stream(device)
