"""The figures. Each function takes results and returns a figure; pyplot's state is not touched."""

from retouch.report.heat import matrix
from retouch.report.lines import kept_over_time, learned_over_time, over_time
from retouch.report.points import learned_and_forgot
from retouch.report.where import where_it_moved

__all__ = [
    "kept_over_time",
    "learned_and_forgot",
    "learned_over_time",
    "matrix",
    "over_time",
    "where_it_moved",
]
