"""Runs as series of a plot: name, style and points of each."""

from collections.abc import Callable, Sequence
from math import isnan
from typing import NamedTuple

from retouch.evaluate.results import Results
from retouch.plotting.label_layout import Point, shorten
from retouch.plotting.theme import BASELINE_STYLE, LineStyle, series_style
from retouch.report.run_metrics import could_learn
from retouch.report.run_names import run_labels


class Series(NamedTuple):
    """A named line of a plot; missing values are points whose y is NaN."""

    name: str
    style: LineStyle
    points: list[Point]
    thin: bool = False
    """Drawn in the background."""

    @property
    def end(self) -> Point:
        """The last point that has a value."""
        return next(point for point in reversed(self.points) if not isnan(point[1]))


def run_series(runs: Sequence[Results], points: Callable[[Results], list[Point]]) -> list[Series]:
    """A series for each run that has any values."""
    described = zip(run_labels(runs), line_styles(runs), map(points, runs), strict=True)
    return [
        Series(shorten(name), style, values)
        for name, style, values in described
        if any(not isnan(y) for _, y in values)
    ]


def line_styles(runs: Sequence[Results]) -> list[LineStyle]:
    """One style per run, the same in every plot; runs that train nothing share a grey one."""
    styles, index = [], 0
    for run in runs:
        if run.done and not could_learn(run):
            styles.append(BASELINE_STYLE)
            continue
        styles.append(series_style(index))
        index += 1
    return styles
