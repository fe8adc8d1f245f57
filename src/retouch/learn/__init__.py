"""The loop over a stream, judging what was learned and what was lost, surviving a kill."""

from retouch.learn.course import preview, teach
from retouch.learn.results import Results, Row
from retouch.learn.watch import Watch

__all__ = ["Results", "Row", "Watch", "preview", "teach"]
