"""Progress of work on many images: a loop wraps its chunks, and the caller decides what to show."""

from collections.abc import Callable, Iterable
from typing import Any

Progress = Callable[[Iterable[Any], str, int], Iterable[Any]]
"""Wraps an iterable over chunks of images or prompts, anything with a length; also takes a
description and how many there are in all."""


def no_progress(chunks: Iterable[Any], description: str, total: int) -> Iterable[Any]:
    """Show nothing."""
    return chunks
