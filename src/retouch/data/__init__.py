"""From files on disk to the tasks of a stream."""

from retouch.data.cache import cached
from retouch.data.image_store import ImageStore
from retouch.data.images import Images, in_memory
from retouch.data.pairs import Pairs, read_pairs
from retouch.data.registry import read_data
from retouch.data.replay import ReplayBuffer
from retouch.data.splits import Splits
from retouch.data.stream import Stream, Task

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
    "read_data",
    "read_pairs",
]
