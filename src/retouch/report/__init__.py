"""What a run learned and what it forgot, for people: a table, plots and a page."""

from retouch.report.page import write_report
from retouch.report.table import comparison

__all__ = ["comparison", "write_report"]
