"""The page: one file that opens offline and says what was learned and what was forgotten."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from retouch.errors import UserError
from retouch.files import write_atomically
from retouch.learn.results import Results
from retouch.report import plots, words
from retouch.report.facts import about, answers, notes, own, shared, title
from retouch.report.look import THEME, inline, png, svg
from retouch.report.table import COLUMNS, rows

FILE = "report.html"


def write_report(folder: str | Path, runs: Sequence[Results]) -> Path:
    """Write `report.html`, which holds all it needs, and its plots as files in `plots/`.

    One run is told as a story, several are compared. The same runs always give the same bytes.
    """
    if not runs:
        raise UserError("there is no run to report; name at least one")
    gallery = _Gallery(Path(folder) / "plots")
    environment = Environment(
        loader=PackageLoader("retouch.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters["unbroken"] = _unbroken
    content = _content(runs) | _drawings(runs, gallery)
    page = Path(folder) / FILE
    write_atomically(page, environment.get_template("page.html.j2").render(content))
    return page


def _unbroken(text: str) -> str:
    """Numbers stay with their units, and "13.8 % → 60.2 %" on one line."""
    return re.sub(r" (?=%|points?\b|→)|(?<=→) ", "\N{NO-BREAK SPACE}", text)


class _Gallery:
    """A folder of plots; what is hung there is returned for the page as well."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def hang(self, name: str, figure: Figure) -> str:
        drawing = svg(figure, name)
        write_atomically(self._folder / f"{name}.svg", drawing)
        write_atomically(self._folder / f"{name}.png", png(figure))
        return drawing


def _content(runs: Sequence[Results]) -> dict[str, Any]:
    """All that the template says in words."""
    done = max(run.done for run in runs)
    return {
        "title": title(runs),
        "about": about(runs),
        "answers": answers(runs[0]) if len(runs) == 1 else [],
        "reading": words.reading(runs),
        "cautions": words.cautions(runs),
        "columns": COLUMNS,
        "rows": rows(runs),
        "notes": notes(runs),
        "shared": shared(runs),
        "same_tasks": all(run.tasks == runs[0].tasks for run in runs),
        "many_tasks": done > 1,
        "last_delta": f"deltas/task-{done:02}.safetensors" if done else "",
        "theme": THEME,
    }


def _drawings(runs: Sequence[Results], gallery: _Gallery) -> dict[str, Any]:
    """The drawings for the page, each with a text for those who cannot see it.

    The page lays out the two panels over time by itself, beside or below each other; as a file
    they are one plot.
    """
    found: dict[str, Any] = {"scatter": "", "lines": []}
    if any(run.done for run in runs):
        scatter = gallery.hang("learned-and-forgot", plots.learned_and_forgot(runs))
        text = "Accuracy on the new classes against points forgotten, a point a run"
        found["scatter"] = Markup(inline(scatter, text))
        gallery.hang("over-time", plots.over_time(runs))
        found["lines"] = _panels(runs)
    found["runs"] = [
        {
            "name": name,
            "summary": run.summary,
            "tasks": run.tasks,
            "facts": own(run, runs),
            "matrix": _matrix(run, name, f"-{i:02}" if len(runs) > 1 else "", gallery),
        }
        for i, (name, run) in enumerate(zip(words.labels(runs), runs, strict=True), 1)
    ]
    return found


def _panels(runs: Sequence[Results]) -> list[Markup]:
    text = "Accuracy on the classes seen so far, after each task"
    found = [inline(svg(plots.learned_over_time(runs), "learned"), text)]
    if any(row.control is not None for run in runs for row in run.rows):
        text = "Accuracy on what the model could do before, before the first task and after each"
        found.append(inline(svg(plots.kept_over_time(runs), "kept"), text))
    return [Markup(drawing) for drawing in found]


def _matrix(run: Results, name: str, suffix: str, gallery: _Gallery) -> Markup:
    if not run.rows:
        return Markup("")
    drawing = gallery.hang(f"matrix{suffix}", plots.matrix(run))
    return Markup(inline(drawing, f"Accuracy of {name} on each task, before and after each task"))
