"""Cells that were run elsewhere, read from their `table.json`.

A frontier takes more GPU time than one session on a shared machine allows. What a table holds of
earlier cells is enough for the table and the figure of all of them, so the folders of these cells
need not be kept.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from retouch.bench.cell import Cell
from retouch.bench.engines.events import CellResult
from retouch.evaluate import Results
from retouch.evaluate.row import Row
from retouch.evaluate.task_info import TaskInfo


class StoredResults(Results):
    """Results with known metrics; of single images nothing is known."""

    measured: dict[str, float]

    @property
    def frozen_accuracy(self) -> float:
        return self.measured["frozen_accuracy"]

    def metrics(self) -> dict[str, float]:
        return self.measured


class StoredCells:
    """Looks up a finished cell that had the same settings."""

    def __init__(self, tables: Iterable[Path] = ()) -> None:
        runs = [run for table in tables for run in json.loads(table.read_text())["runs"]]
        self._runs = {(run["row"], run["dataset"], run["seed"]): run for run in runs}

    def find(self, cell: Cell) -> CellResult | None:
        """The results of this cell; None if it is not there, or was run with other settings."""
        run = self._runs.get((cell.row, cell.dataset, cell.seed))
        if run is None or not _same_settings(cell, run):
            return None
        return CellResult(cell, _results(run), all_images=False)


def _same_settings(cell: Cell, run: dict[str, Any]) -> bool:
    asked = cell.model, cell.change, cell.total_tasks
    settings = cell.training.model_dump(mode="json")
    return asked == (run["model"], run["change"], len(run["matrix"])) and all(
        settings.get(name) == value for name, value in run["settings"].items()
    )


def _results(run: dict[str, Any]) -> StoredResults:
    tasks = len(run["matrix"])
    accuracies = [[None] * tasks, *([*row, *[None] * (tasks - len(row))] for row in run["matrix"])]
    pairs = zip(accuracies, run["control"], strict=True)
    names = ("method", "model", "parameters", "trained", "seconds")
    names += ("settings", "environment", "notes")
    return StoredResults(
        **{name: run[name] for name in names},
        summary="",
        tasks=[TaskInfo(classes=[], train=0, test=1) for _ in range(tasks)],
        rows=[Row(tasks=row, control=control) for row, control in pairs],
        fraction_kept=[1.0] * tasks,
        measured=run["metrics"],
    )
