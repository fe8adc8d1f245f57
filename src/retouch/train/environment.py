"""The machine that a run is computed on: what is recorded of it, and how it is made repeatable."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from typing import Any

import torch
from torch.utils import deterministic

from retouch.clip import Clip
from retouch.clip.fast.fast_vit import skipped_shortcut
from retouch.distributed import collectives
from retouch.methods import Settings
from retouch.sparse.deterministic import use_deterministic
from retouch.version import VERSION


def environment(clip: Clip, settings: Settings) -> dict[str, str]:
    """Versions and hardware, for the results."""
    entries = {
        "python": platform.python_version(),
        "retouch": VERSION,
        "torch": torch.__version__,
        "transformers": _installed_version("transformers"),
        "device": _device_name(clip.device),
        "threads": str(torch.get_num_threads()),
    }
    if collectives.world_size() > 1:
        entries["processes"] = str(collectives.world_size())
    if settings.shard:
        entries["frozen weights"] = "divided"
    if settings.compile and (skipped := skipped_shortcut(clip.model, clip.image_prefix)):
        entries["compiled visual tower"] = skipped
    return entries


@cache
def _installed_version(package: str) -> str:
    """Read once: many short runs in one process would spend a fiftieth of their time on it."""
    return version(package)


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return platform.processor() or "cpu"


@contextmanager
def deterministic_algorithms(device: torch.device) -> Iterator[None]:
    """Inside, the same seed on the same machine gives the same bits, on a GPU too."""
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    enabled = torch.are_deterministic_algorithms_enabled()
    options: Any = deterministic
    fill = options.fill_uninitialized_memory
    options.fill_uninitialized_memory = False  # costs time, and nothing here reads such memory
    use_deterministic(True)
    try:
        yield
    finally:
        use_deterministic(enabled)
        options.fill_uninitialized_memory = fill
