"""Progress of work on many images: who does it wraps its chunks, who shows it decides how."""

from collections.abc import Callable, Iterable

from retouch.data.image_store import Indices

Progress = Callable[[Iterable[Indices], str, int], Iterable[Indices]]
"""Wraps an iterable over chunks of images; also takes a description and the number of images."""


def no_progress(chunks: Iterable[Indices], description: str, total: int) -> Iterable[Indices]:
    """Show nothing."""
    return chunks
