"""A process that decodes images into a cache of pixels, a block at a time.

`loading.processes` starts it. It reads one JSON object per line and answers each with another, and
writes the pixels into the cache's file itself, so that none of them pass through a pipe. It imports
no torch, and is ready in a third of a second.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray
from PIL import Image

from retouch.clip.resize import resize_and_crop
from retouch.data.cache.file import checksum
from retouch.data.loading import decode as decoding
from retouch.data.loading.decode import DecodeError, decode
from retouch.data.stores.file_range import FileRange


def main() -> None:
    """Answer requests until stdin is closed."""
    settings = json.loads(sys.stdin.readline())
    resizing = {
        **settings["resizing"],
        "size": tuple(settings["resizing"]["size"]),
        "resample": Image.Resampling(settings["resizing"]["resample"]),
    }
    decoding.large_image_lock = FileLock(settings["large_image_lock"])
    file = os.open(settings["pixels"], os.O_WRONLY)
    for line in sys.stdin:
        try:
            answer = _decode_block(file, resizing, json.loads(line))
        except OSError as why:  # the disk is full, for example
            answer = {"errno": why.errno, "strerror": why.strerror}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _decode_block(file: int, resizing: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    ranges = [FileRange(path, start, size) for path, start, size in request["ranges"]]
    pixels = np.zeros((len(ranges), *resizing["size"], 3), np.uint8)
    unreadable = []
    for position, file_range in enumerate(ranges):
        try:
            pixels[position] = resize_and_crop(decode(_encoded(file_range)), **resizing)
        except DecodeError as why:
            unreadable.append([position, str(why)])
    write_at(file, request["offset"], pixels)
    return {"checksum": checksum(pixels.data), "unreadable": unreadable}


def _encoded(file_range: FileRange) -> bytes:
    try:
        with Path(file_range.path).open("rb") as file:
            file.seek(file_range.start)
            return file.read(file_range.size)
    except FileNotFoundError:
        raise DecodeError("there is no such file") from None
    except OSError as why:
        raise DecodeError(why.strerror or str(why)) from None


def write_at(file: int, offset: int, pixels: NDArray[np.uint8]) -> None:
    """Write pixels at this offset of a file; a full disk raises an error."""
    remaining = pixels.data.cast("B")
    while remaining:
        written = os.pwrite(file, remaining, offset)
        remaining, offset = remaining[written:], offset + written


if __name__ == "__main__":
    main()
