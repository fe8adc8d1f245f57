"""The plots as parts of the page and as files, each with a text alternative."""

import base64
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup
from matplotlib.figure import Figure

from retouch.analysis.overlap import figure as overlap_plots
from retouch.analysis.overlap.compute import NothingToCompareError, Overlap, read_overlap
from retouch.analysis.overlap.figure import color_limit, layer_title
from retouch.analysis.overlap.text import TITLE, layers_to_show, sentences
from retouch.analysis.result_files import AnalysisFacts, analysis_folder
from retouch.errors import UserError
from retouch.evaluate.results import Results
from retouch.files import checksummed
from retouch.files.write import write_atomically
from retouch.plotting.rendering import inline_svg, to_png, to_svg
from retouch.report import charts as plots
from retouch.report.charts.change_by_layer import block_changes, largest_change_sentences
from retouch.report.charts.loss import loss_table, read_losses
from retouch.report.charts.scatter import forgetting_metric
from retouch.report.facts import accuracy_notes, differing_settings
from retouch.report.run_names import run_labels
from retouch.report.summary import RunSummary

ON_THE_PAGE = ("trace", "cam")
"""Analyses that are shown if they were made, in this order; the overlap is computed each time."""
MAX_BYTES = 8 * 1024 * 1024
"""A figure is smaller than this: a larger file is not one of ours."""
_SIGNATURES = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg"}


class AnalysisResult(NamedTuple):
    """An analysis of a run, ready for the page."""

    name: str
    title: str
    caption: str
    picture: str
    """A data URI; empty if it cannot be shown."""
    problem: str = ""
    """Why it cannot be shown."""


def read_analyses(run: Path) -> list[AnalysisResult]:
    """The analyses in a run's folder. A damaged one is reported; the rest of the page is shown."""
    return [
        _read(run, name)
        for name in ON_THE_PAGE
        if (analysis_folder(run, name) / f"{name}.json").exists()
    ]


def _read(run: Path, name: str) -> AnalysisResult:
    facts_file = analysis_folder(run, name) / f"{name}.json"
    try:
        _check_file(run, facts_file)
        facts = checksummed.read(facts_file, AnalysisFacts, "make it again")
        picture = _data_uri(run, facts_file.with_suffix(".png"), facts.picture)
        return AnalysisResult(name, facts.title, facts.caption, picture)
    except UserError as error:
        return AnalysisResult(name, name, "", "", str(error))


def _check_file(run: Path, file: Path) -> None:
    """Refuse a file that is outside the run's folder, missing, or too large for the page."""
    if not file.resolve().is_relative_to(run.resolve()):
        raise UserError(f"{file} leads out of the run; delete it")
    if not file.is_file():
        raise UserError(f"{file} is missing; make it again")
    if file.stat().st_size >= MAX_BYTES:
        raise UserError(f"{file} is too large for the page: {MAX_BYTES >> 20} MB or more")


def _data_uri(run: Path, file: Path, digest: str) -> str:
    _check_file(run, file)
    data = file.read_bytes()
    formats = [name for signature, name in _SIGNATURES.items() if data.startswith(signature)]
    if not formats:
        raise UserError(f"{file} is not a picture; make it again")
    if sha256(data).hexdigest() != digest:
        raise UserError(f"{file} is damaged or was changed; make it again")
    return f"data:image/{formats[0]};base64,{base64.b64encode(data).decode()}"


class Gallery:
    """Plots as PNG and SVG files, to be written when all are drawn."""

    def __init__(self) -> None:
        self._files: dict[str, bytes | str] = {}

    def add(self, name: str, figure: Figure) -> str:
        """Draw the files of a figure; returns its SVG."""
        svg = to_svg(figure, name)
        self._files |= {f"{name}.svg": svg, f"{name}.png": to_png(figure)}
        return svg

    def write(self, folder: Path) -> None:
        """Write all files into a folder that exists."""
        for name, content in self._files.items():
            write_atomically(folder / name, content)


def _inline(svg: str, label: str) -> Markup:
    """An SVG for the page, marked as safe: matplotlib escapes all text in it."""
    return Markup(inline_svg(svg, label))


def result_figures(runs: Sequence[Results], gallery: Gallery) -> dict[str, Any]:
    """The plots of results.

    The page lays out the two panels over time itself, side by side or stacked; as a file they are
    one plot.
    """
    content: dict[str, Any] = {"scatter": "", "lines": []}
    if forgetting_metric(runs):
        scatter = gallery.add("learned-and-forgot", plots.learned_and_forgot(runs))
        label = "Accuracy on the new classes against points forgotten, one point per run"
        content["scatter"] = _inline(scatter, label)
    if any(run.done for run in runs):
        gallery.add("over-time", plots.over_time(runs))
        content["lines"] = _time_panels(runs)
    content["runs"] = [
        {
            "name": name,
            "summary": run.summary,
            "tasks": [
                {"classes": task.classes, "accuracy": accuracy}
                for task, accuracy in zip(run.tasks, _task_notes(run, runs), strict=True)
            ],
            "facts": differing_settings(run, runs),
            "matrix": _matrix(run, name, f"-{i:02}" if len(runs) > 1 else "", gallery),
        }
        for i, (name, run) in enumerate(zip(run_labels(runs), runs, strict=True), 1)
    ]
    return content


def _task_notes(run: Results, runs: Sequence[Results]) -> list[str]:
    """The accuracy of each task; empty if several runs, which share a list, are compared."""
    return accuracy_notes(run) if len(runs) == 1 else [""] * len(run.tasks)


def _time_panels(runs: Sequence[Results]) -> list[Markup]:
    label = "Accuracy on the classes seen so far, after each task"
    panels = [_inline(to_svg(plots.learned_over_time(runs), "learned"), label)]
    if any(row.control is not None for run in runs for row in run.rows):
        label = "Control accuracy, before the first task and after each"
        panels.append(_inline(to_svg(plots.control_over_time(runs), "kept"), label))
    return panels


def _matrix(run: Results, name: str, suffix: str, gallery: Gallery) -> Markup:
    if not run.rows:
        return Markup("")
    svg = gallery.add(f"matrix{suffix}", plots.accuracy_matrix(run))
    return _inline(svg, f"Accuracy of {name} on each task, before and after each task")


def loss_figures(summaries: Sequence[RunSummary], gallery: Gallery) -> dict[str, Any]:
    """The loss and the learning rate of every step of a single run."""
    steps = read_losses(summaries[0].folder) if len(summaries) == 1 else []
    if not steps:
        return {"curves": [], "loss_table": []}
    table = loss_table(steps)
    label = (
        f"Training loss over {len(steps):,} steps: {table[0].first:.3g} at first, "
        f"{table[-1].last:.3g} at the end; the table below has each task"
    )
    loss = gallery.add("loss", plots.loss_curve(steps))
    rate = to_svg(plots.rate_curve(steps), "rate")
    return {
        "curves": [
            _inline(loss, label),
            _inline(rate, f"Learning rate over {len(steps):,} steps"),
        ],
        "loss_table": table,
    }


def change_figures(summaries: Sequence[RunSummary], gallery: Gallery) -> dict[str, Any]:
    """Where in the network the weights of a single run moved."""
    done = summaries[0].results.done
    towers = block_changes(summaries[0].change_stats, done) if len(summaries) == 1 and done else {}
    if towers:
        gallery.add("where-it-moved", plots.change_by_layer(towers))
    return {
        "largest_changes": largest_change_sentences(towers),
        "towers": [
            _inline(
                to_svg(plots.change_by_layer({tower: blocks}), f"moved-{tower}s"),
                f"How far each block of the {tower} tower moved, and how much of it",
            )
            for tower, blocks in towers.items()
        ],
    }


def analysis_figures(summaries: Sequence[RunSummary], gallery: Gallery) -> dict[str, Any]:
    """The analyses of a single run: the overlap of its tasks, and those in its folder."""
    content: dict[str, Any] = {"overlap": None, "overlap_problem": "", "analyses": []}
    folder = summaries[0].folder if len(summaries) == 1 else None
    if folder is None:
        return content
    try:
        content["overlap"] = _overlap(read_overlap(folder), gallery)
    except NothingToCompareError:
        pass
    except UserError as error:
        content["overlap_problem"] = "" if summaries[0].problem else str(error)
    return content | {"analyses": read_analyses(folder)}


def _overlap(overlap: Overlap, gallery: Gallery) -> dict[str, Any]:
    """The figure of `retouch overlap` in parts, which fit on a phone one by one."""
    shown = layers_to_show(overlap)
    gallery.add("overlap", overlap_plots.overlap_figure(overlap, shown))
    limit = color_limit(shown)
    charts = {"weights": overlap_plots.weights_by_depth}
    if any(layer.neurons for layer in overlap.layers):
        charts["neurons"] = overlap_plots.neurons_by_depth
    return {
        "title": TITLE,
        "sentences": sentences(overlap),
        "by_depth": [
            _inline(
                to_svg(draw(overlap), f"by-depth-{what}"),
                f"The share of {what} that two tasks have in common, layer by layer",
            )
            for what, draw in charts.items()
        ],
        "maps": [
            _inline(
                to_svg(overlap_plots.heat_map(layer, limit), f"shared-{number}"),
                f"{layer_title(layer)}: share of weights that each two tasks share, %",
            )
            for number, layer in enumerate(shown)
        ],
    }
