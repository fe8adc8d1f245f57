"""Warnings about prompts that are longer than the text tower's context."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

log = logging.getLogger("retouch")

NAMED = 5
"""At most so many truncated prompts are named; of the others there is a count."""


class TruncatedPrompts:
    """The truncated prompts of one model. Each is reported once.

    Outside of a run every call of the tokenizer reports what it truncated. A run tokenizes the same
    data set in many batches: while `collecting`, the first few prompts are named at once, and
    `summarize` gives the number of all.
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._named = 0
        self._unreported = 0
        self._context = 0
        self._collecting = False

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Start anew, and count together whatever is truncated meanwhile."""
        self._seen.clear()
        self._named = self._unreported = 0
        self._collecting = True
        try:
            yield
        finally:
            self.summarize()
            self._collecting = False

    def add(self, prompts: Sequence[str], lengths: Sequence[int], context: int) -> None:
        """Report the prompts that have more than `context` tokens, if they are new."""
        if not self._collecting:
            self._named = 0
        self._context = context
        for prompt, length in zip(prompts, lengths, strict=True):
            if length > context and prompt not in self._seen:
                self._seen.add(prompt)
                self._report(prompt, length)
        if not self._collecting:
            self.summarize()

    def summarize(self) -> None:
        """Say how many prompts were truncated, if there are some that were not named."""
        if not self._unreported:
            return
        self._unreported = 0
        log.warning(
            "%d prompts in all were cut at the model's %d tokens; use shorter class names",
            len(self._seen),
            self._context,
        )

    def _report(self, prompt: str, length: int) -> None:
        if self._named == NAMED:
            self._unreported += 1
            return
        self._named += 1
        log.warning(
            "a prompt of %d tokens was cut at the model's %d: %r; use a shorter class name",
            length,
            self._context,
            prompt if len(prompt) < 80 else f"{prompt[:77]}…",
        )
