"""What a run learned and what it forgot, for people: a table, plots and a page."""

from retouch.report.page import write_report
from retouch.report.story import Story, named_results, place_for, read_story
from retouch.report.table import comparison

__all__ = ["Story", "comparison", "named_results", "place_for", "read_story", "write_report"]
