"""The figures. Each function takes results and returns a figure; pyplot's state is not touched."""

from retouch.report.heat import matrix
from retouch.report.lines import kept_over_time, learned_over_time, over_time
from retouch.report.loss import loss_curve, rate_curve
from retouch.report.points import learned_and_forgot
from retouch.report.where import where_it_moved

__all__ = [
    "kept_over_time",
    "learned_and_forgot",
    "learned_over_time",
    "loss_curve",
    "matrix",
    "over_time",
    "rate_curve",
    "where_it_moved",
]
