"""From files on disk to the tasks of a stream."""

from retouch.data.cache import cached
from retouch.data.images import Images, in_memory
from retouch.data.pairs import Pairs, read_pairs
from retouch.data.pictures import Pictures
from retouch.data.read import read_data
from retouch.data.replay import Buffer
from retouch.data.splits import Splits
from retouch.data.stream import Stream, Task

__all__ = [
    "Buffer",
    "Images",
    "Pairs",
    "Pictures",
    "Splits",
    "Stream",
    "Task",
    "cached",
    "in_memory",
    "read_data",
    "read_pairs",
]
