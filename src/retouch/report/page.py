"""The page: one file that opens offline and shows what was learned and what was forgotten."""

import os
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from retouch.arguments import check_arguments
from retouch.evaluate.results import Results
from retouch.files.lock import exclusive_lock
from retouch.files.write import write_atomically
from retouch.plotting.formatting import number
from retouch.plotting.theme import THEME, plot_style
from retouch.report.answers import answers
from retouch.report.class_changes import class_sections
from retouch.report.compare import cautions, comparison_sentences
from retouch.report.facts import provenance, shared_settings, subtitle, title, warnings
from retouch.report.figures import (
    Gallery,
    analysis_figures,
    change_figures,
    loss_figures,
    result_figures,
)
from retouch.report.run_metrics import class_count, control_part
from retouch.report.sentences import CHOICES
from retouch.report.summary import Run, RunSummary, named_results, run_summaries
from retouch.report.table import columns, rows
from retouch.train.run_folder.files import PAGE, PLOTS, check_page_folder

_WAIT_SECONDS = 60.0
"""How long to wait for another process that writes the same page."""


@check_arguments()
def write_report(folder: str | Path, runs: Sequence[Run]) -> Path:
    """Write `report.html`, which needs no other file, and its plots as files in `plots/`.

    The page of one run shows it in detail; that of several compares them. The same runs always give
    the same bytes. A page or plots that retouch did not write are not replaced.

    Args:
        folder: The folder to write to.
        runs: Folders of runs, or their results.
    """
    folder = Path(folder)
    check_page_folder(folder)
    summaries = run_summaries(folder, runs)
    results = named_results(summaries)
    content = _results_content(results) | _run_content(summaries)
    gallery = Gallery()
    with plot_style():  # once for all figures
        content |= result_figures(results, gallery) | loss_figures(summaries, gallery)
        content |= change_figures(summaries, gallery) | analysis_figures(summaries, gallery)
    content["links"] = _links(folder, summaries)
    page = _template().render(content)
    with exclusive_lock(folder / PLOTS, "retouch report", wait_seconds=_WAIT_SECONDS):
        write_atomically(folder / PAGE, page)  # first: it says whose the plots are
        gallery.write(folder / PLOTS)
    return folder / PAGE


@cache
def _template() -> Template:
    """The page without its content; compiled once, for a process may write many pages."""
    environment = Environment(
        loader=PackageLoader("retouch.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters |= {"unbroken": _unbroken, "number": number}
    return environment.get_template("page.html.j2")


def _links(folder: Path, summaries: Sequence[RunSummary]) -> list[str]:
    """Links to the runs' own pages, relative to this one; "" if there is none."""
    return [_link(folder, summary) if len(summaries) > 1 else "" for summary in summaries]


def _link(folder: Path, summary: RunSummary) -> str:
    if summary.folder is None or not (summary.folder / PAGE).is_file():
        return ""
    try:
        path = os.path.relpath(summary.folder.resolve() / PAGE, folder.resolve())
    except ValueError:  # on another drive of Windows
        return ""
    return quote(Path(path).as_posix())


def _unbroken(text: str) -> str:
    """Keep numbers with their units, and "13.8 % → 60.2 %" on one line."""
    return re.sub(r" (?=%|points?\b|→|−)|(?<=[→−]) ", "\N{NO-BREAK SPACE}", text)


def _results_content(runs: Sequence[Results]) -> dict[str, Any]:
    """The text of the page that is computed from results alone."""
    return {
        "subtitle": subtitle(runs),
        "comparison": comparison_sentences(runs),
        "cautions": cautions(runs),
        "columns": columns(runs),
        "rows": rows(runs),
        "warnings": warnings(runs),
        "settings": shared_settings(runs),
        "same_tasks": all(run.tasks == runs[0].tasks for run in runs),
        "tasks": max(len(run.tasks) for run in runs),
        "class_count": class_count(runs[0]),
        "many_tasks": max(run.done for run in runs) > 1,
        "control_part": any(control_part(run) for run in runs),
        "theme": THEME,
        "domains": all(run.domains for run in runs),
        "choices": list(dict.fromkeys(CHOICES[run.choices] for run in runs)),
    }


def _run_content(summaries: Sequence[RunSummary]) -> dict[str, Any]:
    """What is shown for a single run only, and how each run is undone."""
    only = summaries[0] if len(summaries) == 1 else None
    per_class, folder = (only.classes, only.folder) if only else (None, None)
    return {
        "title": title([summary.results for summary in summaries], named=folder is not None),
        "name": folder.resolve().name if folder else "",
        "provenance": provenance(only.results) if only else "",
        "command": only.results.command if only else "",
        "answers": answers(only.results, per_class) if only else [],
        "classes": class_sections(per_class, folder) if per_class else None,
        "deltas": max((summary.deltas for summary in summaries), key=len),
        "anything_learned": any(summary.results.done for summary in summaries),
        "change_problem": only.problem if only else "",
    }
