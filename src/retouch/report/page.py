"""The page: one file that opens offline and says what was learned and what was forgotten."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from retouch.evaluate.results import Results
from retouch.files import write_atomically
from retouch.report import phrasing
from retouch.report.class_changes import class_by_class
from retouch.report.facts import about, answers, made_of, notes, shared, title
from retouch.report.figures import Gallery, drawings, inside, losses, moved
from retouch.report.summary import Run, RunSummary, named_results, run_summaries
from retouch.report.table import columns, rows
from retouch.report.theme import THEME

FILE = "report.html"


def write_report(folder: str | Path, runs: Sequence[Run]) -> Path:
    """Write `report.html`, which holds all it needs, and its plots as files in `plots/`.

    One run is told as a story, several are compared. The same runs always give the same bytes.

    Args:
        folder: The folder to write to.
        runs: Folders of runs, or their results.
    """
    folder = Path(folder)
    told = run_summaries(folder, runs)
    results = named_results(told)
    content = _content(results) | _story(told)  # before anything is written: it may be refused
    gallery = Gallery(folder / "plots")
    content |= drawings(results, gallery) | losses(told, gallery)
    content |= moved(told, gallery) | inside(told, gallery)
    content["links"] = _links(folder, told)
    environment = Environment(
        loader=PackageLoader("retouch.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters |= {"unbroken": _unbroken, "number": phrasing.number}
    write_atomically(folder / FILE, environment.get_template("page.html.j2").render(content))
    return folder / FILE


def _links(folder: Path, told: Sequence[RunSummary]) -> list[str]:
    """Where each run's own page lies, seen from this one; "" where it has none."""
    return [_link(folder, story) if len(told) > 1 else "" for story in told]


def _link(folder: Path, story: RunSummary) -> str:
    if story.folder is None or not (story.folder / FILE).is_file():
        return ""
    try:
        there = os.path.relpath(story.folder.resolve() / FILE, folder.resolve())
    except ValueError:  # on another drive of Windows
        return ""
    return quote(Path(there).as_posix())


def _unbroken(text: str) -> str:
    """Numbers stay with their units, and "13.8 % → 60.2 %" on one line."""
    return re.sub(r" (?=%|points?\b|→|−)|(?<=[→−]) ", "\N{NO-BREAK SPACE}", text)


def _content(runs: Sequence[Results]) -> dict[str, Any]:
    """All that the template says in words of results."""
    return {
        "about": about(runs),
        "reading": phrasing.comparison_sentences(runs),
        "cautions": phrasing.cautions(runs),
        "columns": columns(runs),
        "rows": rows(runs),
        "notes": notes(runs),
        "shared": shared(runs),
        "same_tasks": all(run.tasks == runs[0].tasks for run in runs),
        "tasks": max(len(run.tasks) for run in runs),
        "class_count": phrasing.classes(runs[0]),
        "many_tasks": max(run.done for run in runs) > 1,
        "theme": THEME,
    }


def _story(told: Sequence[RunSummary]) -> dict[str, Any]:
    """What is told of one run alone, and how each is undone."""
    only = told[0] if len(told) == 1 else None
    by_class, folder = (only.classes, only.folder) if only else (None, None)
    return {
        "title": title([story.results for story in told], named=folder is not None),
        "name": folder.resolve().name if folder else "",
        "made_of": made_of(only.results) if only else "",
        "command": only.results.command if only else "",
        "answers": answers(only.results, by_class) if only else [],
        "classes": class_by_class(by_class, folder) if by_class else None,
        "deltas": max((story.deltas for story in told), key=len),
        "anything_learned": any(story.results.done for story in told),
        "trouble": only.trouble if only else "",
    }
