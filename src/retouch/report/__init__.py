"""What a run learned and what it forgot, for people: a table, plots and a page."""

from retouch.report.page import write_report
from retouch.report.summary import RunSummary, named_results, read_run_summary, report_folder
from retouch.report.table import comparison_table

__all__ = [
    "RunSummary",
    "comparison_table",
    "named_results",
    "read_run_summary",
    "report_folder",
    "write_report",
]
