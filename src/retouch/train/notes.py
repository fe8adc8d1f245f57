"""Notes in the results of a run: what a user should know of it."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from retouch.data.images import Images
from retouch.evaluate.results import Results


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
