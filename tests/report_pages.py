"""Pages of the report, parsed."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from retouch.evaluate.results import Results
from retouch.report import write_report


class Page(HTMLParser):
    """A page as a browser understands it."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.source = file.read_text(encoding="utf-8")
        self.feed(self.source)
        self.text = re.sub(r"\s+", " ", self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def page_of(folder: Path, *runs: Results | Path, drawn: bool = False) -> Page:
    """The page alone: its plots are made, and drawn if asked for, but not as PNG files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("retouch.report.figures.to_png", lambda figure: b"")
        if not drawn:
            empty = '<svg viewBox="0 0 9 9"></svg>'
            patch.setattr("retouch.report.figures.to_svg", lambda figure, name: empty)
        return Page(write_report(folder, runs))
