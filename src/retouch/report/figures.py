"""The plots as parts of the page and as files, each with a text for those who cannot see it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure

from retouch.analysis.overlap import NothingToCompareError, Overlap, read_overlap
from retouch.errors import UserError
from retouch.evaluate.results import Results
from retouch.files import write_atomically
from retouch.report import overlap as sharing
from retouch.report import plots
from retouch.report.analysis_page import read_analyses
from retouch.report.change_by_layer import blocks, farthest
from retouch.report.facts import judged_now, own
from retouch.report.loss import read_losses
from retouch.report.loss import table_of as loss_table
from retouch.report.overlap_text import TITLE, pick, sentences
from retouch.report.run_names import labels
from retouch.report.summary import RunSummary
from retouch.report.theme import inline, png, svg


class Gallery:
    """A folder of plots; what is hung there is returned for the page as well."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def hang(self, name: str, figure: Figure) -> str:
        drawing = svg(figure, name)
        write_atomically(self._folder / f"{name}.svg", drawing)
        write_atomically(self._folder / f"{name}.png", png(figure))
        return drawing


def drawings(runs: Sequence[Results], gallery: Gallery) -> dict[str, Any]:
    """What is drawn of results.

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
            "tasks": [
                {"classes": task.classes, "judged": judged}
                for task, judged in zip(run.tasks, _judged(run, runs), strict=True)
            ],
            "facts": own(run, runs),
            "matrix": _matrix(run, name, f"-{i:02}" if len(runs) > 1 else "", gallery),
        }
        for i, (name, run) in enumerate(zip(labels(runs), runs, strict=True), 1)
    ]
    return found


def _judged(run: Results, runs: Sequence[Results]) -> list[str]:
    """How each task stands; left out where several runs are compared, who share a list."""
    return judged_now(run) if len(runs) == 1 else [""] * len(run.tasks)


def losses(told: Sequence[RunSummary], gallery: Gallery) -> dict[str, Any]:
    """The loss and the learning rate of every step of a single run."""
    steps = read_losses(told[0].folder) if len(told) == 1 else []
    if not steps:
        return {"curves": [], "loss_table": []}
    table = loss_table(steps)
    text = f"Training loss over {len(steps):,} steps: {table[0].first:.3g} at first, "
    text += f"{table[-1].last:.3g} at the end; the table below has each task"
    loss = gallery.hang("loss", plots.loss_curve(steps))
    rates = svg(plots.rate_curve(steps), "rate")
    return {
        "curves": [
            Markup(inline(loss, text)),
            Markup(inline(rates, f"Learning rate over {len(steps):,} steps")),
        ],
        "loss_table": table,
    }


def moved(told: Sequence[RunSummary], gallery: Gallery) -> dict[str, Any]:
    """Where in the network the weights of a single run moved."""
    done = told[0].results.done
    towers = blocks(told[0].change_stats, done) if len(told) == 1 and done else {}
    if towers:
        gallery.hang("where-it-moved", plots.change_by_layer(towers))
    return {
        "farthest": farthest(towers),
        "towers": [
            Markup(inline(svg(plots.change_by_layer({tower: found}), f"moved-{tower}"), text))
            for tower, found in towers.items()
            for text in [f"How far each block of the tower for {tower} moved, and how much of it"]
        ],
    }


def inside(told: Sequence[RunSummary], gallery: Gallery) -> dict[str, Any]:
    """A look inside a single run: which weights its tasks share, and what else was made of it."""
    folder = told[0].folder if len(told) == 1 else None
    found: dict[str, Any] = {"overlap": None, "no_overlap": "", "made": []}
    if folder is None:
        return found
    try:
        found["overlap"] = _overlap(read_overlap(folder), gallery)
    except NothingToCompareError:
        pass
    except UserError as why:
        found["no_overlap"] = "" if told[0].trouble else str(why)
    return found | {"made": read_analyses(folder)}


def _overlap(found: Overlap, gallery: Gallery) -> dict[str, Any]:
    """The same figure as `retouch overlap` draws, in parts, which fit a phone one by one."""
    shown = pick(found)
    gallery.hang("overlap", sharing.figure(found, shown))
    top = sharing.ceiling(shown)
    by_depth = {"weights": sharing.weights_by_depth}
    if any(layer.neurons for layer in found.layers):
        by_depth["neurons"] = sharing.neurons_by_depth
    return {
        "title": TITLE,
        "sentences": sentences(found),
        "by_depth": [
            Markup(inline(svg(draw(found), f"by-depth-{what}"), text))
            for what, draw in by_depth.items()
            for text in [f"The share of {what} that two tasks have in common, layer by layer"]
        ],
        "maps": [
            Markup(inline(svg(sharing.heat_map(layer, top), f"shared-{number}"), text))
            for number, layer in enumerate(shown)
            for text in [f"{sharing.name_of(layer)}: share of weights that each two tasks share, %"]
        ],
    }


def _panels(runs: Sequence[Results]) -> list[Markup]:
    text = "Accuracy on the classes seen so far, after each task"
    found = [inline(svg(plots.learned_over_time(runs), "learned"), text)]
    if any(row.control is not None for run in runs for row in run.rows):
        text = "Control accuracy, before the first task and after each"
        found.append(inline(svg(plots.kept_over_time(runs), "kept"), text))
    return [Markup(drawing) for drawing in found]


def _matrix(run: Results, name: str, suffix: str, gallery: Gallery) -> Markup:
    if not run.rows:
        return Markup("")
    drawing = gallery.hang(f"matrix{suffix}", plots.accuracy_matrix(run))
    return Markup(inline(drawing, f"Accuracy of {name} on each task, before and after each task"))
