"""Images whose cache is being built in the background: reading waits for it."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from retouch.clip.preprocess import Preprocess, Uint8
from retouch.data.loading.progress import Progress, no_progress
from retouch.data.stores.cached import CachedStore
from retouch.data.stores.image_store import ImageStore, Indices
from retouch.data.stores.preprocessed import PreprocessedStore

POLL_SECONDS = 0.2
"""How often a reader that waits checks how far the decoding is."""
_building = threading.Lock()
"""Caches are built one after the other, each with all cores, in the order they were asked for."""


@dataclass
class BackgroundBuild:
    """A cache that a thread of its own builds.

    Args:
        name: The name of the images.
        open_cache: Builds the cache if it does not exist, and opens it.
        announce: Called with a description when images begin to be decoded.
    """

    name: str
    open_cache: Callable[[Progress], CachedStore]
    announce: Callable[[str], None]
    done: int = 0
    """How many images are decoded."""
    _future: "Future[CachedStore]" = field(default_factory=Future)

    def start(self) -> None:
        """Begin, after the builds that were started before."""
        started = threading.Event()
        thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        thread.start()
        started.wait(0.05)  # so that it queues for the lock before the next one

    def result(self) -> CachedStore:
        """The cache, once it is built; or what went wrong."""
        return self._future.result()

    def wait(self, progress: Progress, total: int) -> CachedStore:
        """The cache; shows how far it is while waiting.

        Args:
            progress: Shows it.
            total: How many images there are.
        """
        if not self._future.done():
            for _ in progress(self._advances(), f"Decoding {self.name}", total):
                pass
        return self.result()

    def _run(self, started: threading.Event) -> None:
        try:
            started.set()
            with _building:
                self._future.set_result(self.open_cache(self._count))
        except BaseException as why:  # whoever reads the images gets it
            self._future.set_exception(why)

    def _count(self, chunks: Any, description: str, total: int) -> Iterator[Indices]:
        self.announce(description)
        for chunk in chunks:
            yield chunk
            self.done += len(chunk)

    def _advances(self) -> Iterator[Indices]:
        shown = 0
        while not self._future.done():
            threading.Event().wait(POLL_SECONDS)
            new, shown = self.done - shown, self.done
            yield np.arange(new)


class FillingStore(PreprocessedStore):
    """Images whose cache is being built.

    Args:
        source: The images, not decoded.
        preprocess: The size and crop that the model wants.
        build: The build of their cache.
        check: Refuses a cache with unreadable images.
    """

    def __init__(
        self,
        source: ImageStore,
        preprocess: Preprocess,
        build: BackgroundBuild,
        check: Callable[[CachedStore], None],
    ) -> None:
        super().__init__(source, preprocess)
        self._build, self._check = build, check

    def read(self, indices: Indices, preprocess: Preprocess, out: Uint8 | None = None) -> Uint8:
        cache = self._build.result()
        self._check(cache)
        return cache.read(indices, preprocess, out)

    def wait(self, progress: Progress = no_progress) -> None:
        self._check(self._build.wait(progress, len(self)))
