"""A batch of prompts as a text tower takes them, and warnings about prompts that are too long."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

log = logging.getLogger("retouch")

MAX_NAMED = 5
"""At most this many truncated prompts are quoted; the rest are counted."""
Tokens = dict[str, Tensor]
"""A batch of prompts as the text tower takes them, padded to the longest of them."""


def num_prompts(tokens: Tokens) -> int:
    """The number of prompts in a batch."""
    return len(next(iter(tokens.values())))


class TruncatedPrompts:
    """The truncated prompts of one model. Each is reported once.

    Outside a run, every call of the tokenizer reports what it truncated. A run tokenizes the same
    data in many batches: inside `collecting`, the first few prompts are quoted immediately, and
    `summarize` reports the total.
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._num_named = 0
        self._num_unreported = 0
        self._context = 0
        self._collecting = False

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Reset the counts, and report the total of what is truncated inside this context."""
        self._seen.clear()
        self._num_named = self._num_unreported = 0
        self._collecting = True
        try:
            yield
        finally:
            self.summarize()
            self._collecting = False

    def add(self, prompts: Sequence[str], lengths: Sequence[int], context: int) -> None:
        """Report the prompts that have more than `context` tokens, unless reported before."""
        if not self._collecting:
            self._num_named = 0
        self._context = context
        for prompt, length in zip(prompts, lengths, strict=True):
            if length > context and prompt not in self._seen:
                self._seen.add(prompt)
                self._report(prompt, length)
        if not self._collecting:
            self.summarize()

    def summarize(self) -> None:
        """Report how many prompts were truncated, if some were not quoted."""
        if not self._num_unreported:
            return
        self._num_unreported = 0
        log.warning(
            "%d prompts in all were cut at the model's %d tokens; use shorter names or captions",
            len(self._seen),
            self._context,
        )

    def _report(self, prompt: str, length: int) -> None:
        if self._num_named == MAX_NAMED:
            self._num_unreported += 1
            return
        self._num_named += 1
        log.warning(
            "a prompt of %d tokens was cut at the model's %d: %r; use a shorter name or caption",
            length,
            self._context,
            prompt if len(prompt) < 80 else f"{prompt[:77]}…",
        )
