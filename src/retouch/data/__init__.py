"""From files on disk to the tasks of a stream."""

from retouch.data.folder import read_classes, read_folder
from retouch.data.images import ArrayImages, Images
from retouch.data.replay import Buffer
from retouch.data.stream import Stream, Task

__all__ = ["ArrayImages", "Buffer", "Images", "Stream", "Task", "read_classes", "read_folder"]
