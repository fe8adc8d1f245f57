"""All figures of results. Each function returns a figure; pyplot's global state is not used."""

from retouch.report.charts.accuracy_matrix import accuracy_matrix
from retouch.report.charts.change_by_layer import change_by_layer
from retouch.report.charts.line_charts import control_over_time, learned_over_time, over_time
from retouch.report.charts.loss import loss_curve, rate_curve
from retouch.report.charts.scatter import learned_and_forgot

__all__ = [
    "accuracy_matrix",
    "change_by_layer",
    "control_over_time",
    "learned_and_forgot",
    "learned_over_time",
    "loss_curve",
    "over_time",
    "rate_curve",
]
