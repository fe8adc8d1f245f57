"""The loop over a stream, judging what was learned and what was lost, surviving a kill."""

from retouch.learn.continued import continue_run
from retouch.learn.course import preview, teach
from retouch.learn.reopen import Reopened, is_run, reopen
from retouch.learn.results import Results, Row
from retouch.learn.watch import Watch

__all__ = [
    "Reopened",
    "Results",
    "Row",
    "Watch",
    "continue_run",
    "is_run",
    "preview",
    "reopen",
    "teach",
]
