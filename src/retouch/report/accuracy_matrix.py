"""The accuracy on each task after each task of one run, as a figure."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from retouch.evaluate.results import Results
from retouch.plotting.formatting import MISSING, number
from retouch.plotting.label_layout import text_width
from retouch.plotting.theme import HEAT, INK, MUTED, PANEL_WIDTH, PAPER, plot_style

TITLE = "Recognised of each task, %"
TOP, CELL_HEIGHT = 0.68, 0.36  # inches: room for the headings; height of a cell
MIN_CELL_WIDTH, MAX_CELL_WIDTH = 0.36, 0.72


def accuracy_matrix(run: Results) -> Figure:
    """Rows: before, then after each task. Columns: the tasks. Deeper color is higher accuracy.

    A task that was not learned yet at that moment has no color and is set in italics; what was not
    measured is a dash. After a task at which nothing was measured there is no row.
    """
    shown = [
        t
        for t, row in enumerate(run.rows)
        if not t or any(value is not None for value in row.tasks)
    ]
    tasks, rows = len(run.tasks), max(1, len(shown))
    left = text_width(_row_label(run.done)) / 72 + 0.12
    cell_width = min(MAX_CELL_WIDTH, max((PANEL_WIDTH - left) / tasks, MIN_CELL_WIDTH))
    width = max(left + cell_width * tasks, 1.15 * text_width(TITLE) / 72)
    height = TOP + CELL_HEIGHT * rows
    with plot_style():
        figure = Figure(figsize=(width, height))
        axes = figure.add_axes((left / width, 0, cell_width * tasks / width, 1 - TOP / height))
        axes.set_axis_off()
        axes.set(xlim=(0, tasks), ylim=(rows, 0))
        _add_headings(axes, tasks, shown, cell_width, left)
        for y, t in enumerate(shown):
            for i in range(tasks):
                accuracy = run.rows[t].tasks[i] if i < len(run.rows[t].tasks) else None
                _add_cell(axes, (i, y), accuracy, learned=i < t, decimals=cell_width > 0.45)
    return figure


def _row_label(t: int) -> str:
    return f"after task {t}" if t else "before"


def _add_headings(
    axes: Axes, tasks: int, shown: Sequence[int], cell_width: float, left: float
) -> None:
    for i in range(tasks):
        name = f"task {i + 1}" if cell_width > 0.6 else str(i + 1)
        axes.text(i + 0.5, -0.3, name, ha="center", color=MUTED)
    for y, t in enumerate(shown):
        position = (-0.12 / cell_width, y + 0.5)
        axes.text(*position, _row_label(t), ha="right", va="center_baseline", color=MUTED)
    axes.text(-left / cell_width, -1.3, TITLE, weight="bold")


def _add_cell(
    axes: Axes, corner: tuple[int, int], accuracy: float | None, *, learned: bool, decimals: bool
) -> None:
    color, style, text = MUTED, "normal", MISSING
    if accuracy is not None:
        text = number(accuracy) if decimals and accuracy < 99.95 else f"{accuracy:.0f}"
        style = "italic"
        if learned:
            alpha = 0.05 + 0.95 * accuracy / 100
            axes.add_patch(Rectangle(corner, 1, 1, facecolor=HEAT, alpha=alpha, linewidth=0))
            axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=PAPER, linewidth=1.5))
            # From here on, white is easier to read on a light page, and black on a dark one.
            color, style = PAPER if alpha > 0.68 else INK, "normal"
    middle = corner[0] + 0.5, corner[1] + 0.5
    axes.text(*middle, text, ha="center", va="center_baseline", color=color, style=style)
