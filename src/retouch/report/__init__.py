"""What a run learned and what it forgot, for people: a table, plots and a page."""

from retouch.report.page import write_report
from retouch.report.summary import RunSummary, named_results, place_for, read_run_summary
from retouch.report.table import comparison

__all__ = [
    "RunSummary",
    "comparison",
    "named_results",
    "place_for",
    "read_run_summary",
    "write_report",
]
