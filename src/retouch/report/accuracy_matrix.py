"""The matrix of accuracies of one run, as a figure."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from retouch.evaluate.results import Results
from retouch.report.label_layout import text_width
from retouch.report.phrasing import NONE, number
from retouch.report.theme import HEAT, INK, MUTED, PAPER, WIDTH, styled

TOP, HIGH = 0.68, 0.36  # inches: room for the headings; a cell's height
TITLE = "Recognised of each task, %"
NARROWEST, WIDEST = 0.36, 0.72  # a cell's width


def accuracy_matrix(run: Results) -> Figure:
    """Rows: before, then after each task. Columns: the tasks. The deeper the colour, the more.

    What was not learned yet at that moment has no colour and is set in italics; what could not be
    judged is a dash.
    """
    tasks, rows = len(run.tasks), max(1, len(run.rows))
    left = text_width(_moment(run.done)) / 72 + 0.12
    wide = min(WIDEST, max((WIDTH - left) / tasks, NARROWEST))
    width = max(left + wide * tasks, 1.15 * text_width(TITLE) / 72)
    height = TOP + HIGH * rows
    with styled():
        figure = Figure(figsize=(width, height))
        axes = figure.add_axes((left / width, 0, wide * tasks / width, 1 - TOP / height))
        axes.set_axis_off()
        axes.set(xlim=(0, tasks), ylim=(rows, 0))
        _headings(axes, run, wide, left)
        for t, row in enumerate(run.rows):
            for i in range(tasks):
                accuracy = row.tasks[i] if i < len(row.tasks) else None
                if accuracy is None:
                    _blank(axes, t, i)
                else:
                    _cell(axes, t, i, accuracy, exact=wide > 0.45)
    return figure


def _moment(t: int) -> str:
    return f"after task {t}" if t else "before"


def _headings(axes: Axes, run: Results, wide: float, left: float) -> None:
    for i in range(len(run.tasks)):
        name = f"task {i + 1}" if wide > 0.6 else str(i + 1)
        axes.text(i + 0.5, -0.3, name, ha="center", color=MUTED)
    for t in range(len(run.rows)):
        place = (-0.12 / wide, t + 0.5)
        axes.text(*place, _moment(t), ha="right", va="center_baseline", color=MUTED)
    axes.text(-left / wide, -1.3, TITLE, weight="bold")


def _cell(axes: Axes, t: int, i: int, accuracy: float, exact: bool) -> None:
    text = number(accuracy) if exact and accuracy < 99.95 else f"{accuracy:.0f}"
    colour, style = MUTED, "italic"
    if i < t:  # learned by then
        deep = 0.05 + 0.95 * accuracy / 100
        axes.add_patch(Rectangle((i, t), 1, 1, facecolor=HEAT, alpha=deep, linewidth=0))
        axes.add_patch(Rectangle((i, t), 1, 1, fill=False, edgecolor=PAPER, linewidth=1.5))
        # From here on, white is easier to read in a light page, and black in a dark one.
        colour, style = PAPER if deep > 0.68 else INK, "normal"
    place = (i + 0.5, t + 0.5)
    axes.text(*place, text, ha="center", va="center_baseline", color=colour, style=style)


def _blank(axes: Axes, t: int, i: int) -> None:
    axes.text(i + 0.5, t + 0.5, NONE, ha="center", va="center_baseline", color=MUTED)
