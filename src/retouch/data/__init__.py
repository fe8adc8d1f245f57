"""From files on disk to the tasks of a stream."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# The module that each name comes from. They are imported on first use, so that processes that only
# decode images (`loading.worker`) do not import torch.
_MODULES = {
    "ImageStore": "stores.image_store",
    "Images": "images",
    "Pairs": "pairs",
    "ReplayBuffer": "replay",
    "Splits": "splits",
    "Stream": "stream",
    "Task": "stream",
    "cached": "cache.images",
    "in_memory": "images",
    "read_data": "registry",
    "read_control": "registry",
    "read_pairs": "registry",
}
__all__ = [
    "ImageStore",
    "Images",
    "Pairs",
    "ReplayBuffer",
    "Splits",
    "Stream",
    "Task",
    "cached",
    "in_memory",
    "read_control",
    "read_data",
    "read_pairs",
]

if TYPE_CHECKING:
    from retouch.data.cache.images import cached
    from retouch.data.images import Images, in_memory
    from retouch.data.pairs import Pairs
    from retouch.data.registry import read_control, read_data, read_pairs
    from retouch.data.replay import ReplayBuffer
    from retouch.data.splits import Splits
    from retouch.data.stores.image_store import ImageStore
    from retouch.data.stream import Stream, Task


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"retouch.data has no {name!r}")
    return getattr(import_module(f"retouch.data.{_MODULES[name]}"), name)
