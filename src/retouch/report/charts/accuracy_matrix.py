"""The accuracy on each task or data set after each task of one run, as a figure."""

from math import cos, radians, sin
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from retouch.evaluate.results import Results
from retouch.plotting.formatting import MISSING, number
from retouch.plotting.label_layout import shorten, text_width
from retouch.plotting.theme import HEAT, INK, MUTED, PANEL_WIDTH, PAPER, plot_style

TOP, CELL_HEIGHT = 0.68, 0.36  # inches: room for the headings; height of a cell
MIN_CELL_WIDTH, MAX_CELL_WIDTH = 0.36, 0.72
SLANT = 40
"""The angle of the names of data sets, which would not fit above their columns otherwise."""


class _Matrix(NamedTuple):
    """What is drawn: a column per task or data set, a row per moment."""

    title: str
    columns: list[str]
    rows: list[str]
    accuracies: list[list[float | None]]
    learned: list[list[bool]]
    colored: bool
    """Whether what is not learned yet has a color too."""
    slanted: bool


def accuracy_matrix(run: Results) -> Figure:
    """Rows: before, then after each task. Columns: the tasks, or the data sets of several.

    Deeper color is higher accuracy. What was not learned yet at that moment is set in italics, and
    a task has no color then; what was not measured is a dash. After a task at which nothing was
    measured there is no row.
    """
    matrix = _domain_matrix(run) if run.domains else _task_matrix(run)
    columns, rows = len(matrix.columns), max(1, len(matrix.rows))
    left = max(map(text_width, matrix.rows), default=0) / 72 + 0.12
    cell_width = min(MAX_CELL_WIDTH, max((PANEL_WIDTH - left) / columns, MIN_CELL_WIDTH))
    slant = max(map(text_width, matrix.columns)) / 72 if matrix.slanted else 0.0
    top = TOP + slant * sin(radians(SLANT))
    width = max(left + cell_width * columns, 1.15 * text_width(matrix.title) / 72)
    width = max(width, left + cell_width * (columns - 0.5) + slant * cos(radians(SLANT)))
    height = top + CELL_HEIGHT * rows
    with plot_style():
        figure = Figure(figsize=(width, height))
        axes = figure.add_axes((left / width, 0, cell_width * columns / width, 1 - top / height))
        axes.set_axis_off()
        axes.set(xlim=(0, columns), ylim=(rows, 0))
        _add_headings(axes, matrix, cell_width)
        axes.text(-left / cell_width, 0.58 - top / CELL_HEIGHT, matrix.title, weight="bold")
        for y, (accuracies, learned) in enumerate(
            zip(matrix.accuracies, matrix.learned, strict=True)
        ):
            for i, (accuracy, known) in enumerate(zip(accuracies, learned, strict=True)):
                style = {"colored": known or matrix.colored, "italic": not known}
                _add_cell(axes, (i, y), accuracy, **style, decimals=cell_width > 0.45)
    return figure


def _task_matrix(run: Results) -> _Matrix:
    tasks = len(run.tasks)
    moments = [
        t
        for t, row in enumerate(run.rows)
        if not t or any(value is not None for value in row.tasks)
    ]
    accuracies = [(run.rows[t].tasks + [None] * tasks)[:tasks] for t in moments]
    return _Matrix(
        "Recognized of each task, %",
        [f"task {i + 1}" for i in range(tasks)],
        [f"after task {t}" if t else "before" for t in moments],
        accuracies,
        [[i < t for i in range(tasks)] for t in moments],
        colored=False,
        slanted=False,
    )


def _domain_matrix(run: Results) -> _Matrix:
    of_task = [task.domain for task in run.tasks]
    one_each = len(set(of_task)) == len(of_task)
    names = [shorten(name) for name in run.domains]
    ends = [len(of_task) - of_task[::-1].index(name) for name in run.domains]
    rows = [
        (t, row) for t, row in enumerate(run.domain_matrix) if not t or row != [None] * len(row)
    ]
    after = [f"after {name}" for name in names] if one_each else []
    after = after or [f"after task {t + 1}" for t in range(len(of_task))]
    return _Matrix(
        "Recognized of each data set, %",
        names,
        [after[t - 1] if t else "before" for t, _ in rows],
        [row for _, row in rows],
        [[end <= t for end in ends] for t, _ in rows],
        colored=True,
        slanted=True,
    )


def _add_headings(axes: Axes, matrix: _Matrix, cell_width: float) -> None:
    for i, heading in enumerate(matrix.columns):
        if matrix.slanted:
            axes.text(i + 0.4, -0.2, heading, rotation=SLANT, rotation_mode="anchor", color=MUTED)
        else:
            name = heading if cell_width > 0.6 else str(i + 1)
            axes.text(i + 0.5, -0.3, name, ha="center", color=MUTED)
    for y, label in enumerate(matrix.rows):
        position = (-0.12 / cell_width, y + 0.5)
        axes.text(*position, label, ha="right", va="center_baseline", color=MUTED)


def _add_cell(
    axes: Axes,
    corner: tuple[int, int],
    accuracy: float | None,
    *,
    colored: bool,
    italic: bool,
    decimals: bool,
) -> None:
    color, style, text = MUTED, "normal", MISSING
    if accuracy is not None:
        text = number(accuracy) if decimals and accuracy < 99.95 else f"{accuracy:.0f}"
        style = "italic" if italic else "normal"
        if colored:
            alpha = 0.05 + 0.95 * accuracy / 100
            axes.add_patch(Rectangle(corner, 1, 1, facecolor=HEAT, alpha=alpha, linewidth=0))
            axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=PAPER, linewidth=1.5))
            # From here on, white is easier to read on a light page, and black on a dark one.
            color = PAPER if alpha > 0.68 else INK
    middle = corner[0] + 0.5, corner[1] + 0.5
    axes.text(*middle, text, ha="center", va="center_baseline", color=color, style=style)
