"""Decode with several processes: more than two or three threads would wait for each other.

Pillow releases the GIL while it decodes and resizes, but a quarter of the time that an image takes
is Python. Each process here is served by one thread, which sends it the place of a block of images
and gets back a checksum (see `loading.worker`).
"""

import json
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from retouch.clip.preprocess import Preprocess
from retouch.data.stores.file_range import FileRange
from retouch.process.child_process import start_python

if TYPE_CHECKING:
    import subprocess

MIN_WORKERS = 3
"""With fewer workers, threads keep as many cores busy."""
MIN_IMAGES = 1024
"""Fewer images are decoded before the processes are ready."""
_START = "from retouch.data.loading.worker import main; main()"


class DecodedBlock(NamedTuple):
    """What a process answers: the pixels themselves are in the file."""

    checksum: str
    unreadable: list[tuple[int, str]]
    """Positions in the block, and why each cannot be decoded."""


class DecodeProcesses:
    """One process for each thread that calls `decode`. Leaving the context ends them.

    Args:
        pixels: The file that pixels are written to.
        preprocess: The size and crop that the model wants.
    """

    def __init__(self, pixels: Path, preprocess: Preprocess) -> None:
        lock = pixels.with_name("large_image.lock")
        settings = {"pixels": str(pixels), "large_image_lock": str(lock)}
        self._settings = {**settings, "resizing": preprocess.resizing}
        self._local = threading.local()
        self._lock = threading.Lock()
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with self._lock:
            for process in self._processes:
                if any(error):
                    process.kill()
                with suppress(BrokenPipeError):  # it died
                    process.stdin.close()  # type: ignore[union-attr]
            for process in self._processes:
                process.wait()
                process.stdout.close()  # type: ignore[union-attr]

    def decode(self, ranges: Sequence[FileRange], offset: int) -> DecodedBlock | None:
        """Decode a block of images and write it at this offset; None if the process died."""
        places = [(os.fsdecode(r.path), r.start, r.size) for r in ranges]
        try:
            process = self._process()
            _send(process, {"ranges": places, "offset": offset})
            line = process.stdout.readline()  # type: ignore[union-attr]
        except BrokenPipeError:
            line = ""
        if not line:
            del self._local.process
            return None
        answer = json.loads(line)
        if "errno" in answer:
            raise OSError(answer["errno"], answer["strerror"])
        unreadable = [(position, reason) for position, reason in answer["unreadable"]]
        return DecodedBlock(answer["checksum"], unreadable)

    def _process(self) -> "subprocess.Popen[str]":
        """The process of this thread; a new one if there is none."""
        process: subprocess.Popen[str] | None = getattr(self._local, "process", None)
        if process is None:
            process = start_python(_START)
            with self._lock:
                self._processes.append(process)
            self._local.process = process
            _send(process, self._settings)
        return process


def _send(process: "subprocess.Popen[str]", message: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(message) + "\n")
    process.stdin.flush()
