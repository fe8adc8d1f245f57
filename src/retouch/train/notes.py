"""Notes in the results of a run: what a user should know of it."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from retouch.clip import Clip
from retouch.data.images import Images
from retouch.evaluate.results import Results
from retouch.methods import Method

log = logging.getLogger("retouch")


def add_image_notes(results: Results, sets: Iterable[Images | None]) -> None:
    """Add what was noticed when these images were read, such as skipped files."""
    for images in sets:
        results.notes += [n for n in (images.notes if images else []) if n not in results.notes]


@contextmanager
def warnings_as_notes(results: Results) -> Iterator[None]:
    """Inside, whatever is logged as a warning becomes a note in the results."""
    handler, log = _NotesHandler(results), logging.getLogger("retouch")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


class _NotesHandler(logging.Handler):
    def __init__(self, results: Results) -> None:
        super().__init__(logging.WARNING)
        self._results = results

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if line not in self._results.notes:
            self._results.notes.append(line)


def warn_about_plain_sigmoid(clip: Clip, method: Method) -> None:
    """In a batch with k images of a class, the plain sigmoid loss pulls their match to 1/k.

    Each image has its prompt as a match once and as a mismatch k − 1 times. A softmax adds up what
    equal prompts get, so that CLIP does not have this problem.
    """
    if clip.logit_bias is not None and method.loss == "contrastive" and not method.trains_nothing:
        log.warning(
            "%s has a sigmoid loss, whose plain form takes images of one class for mismatches of "
            "each other's prompt and so lowers its probabilities; with loss=label-aware they match",
            clip.name,
        )
