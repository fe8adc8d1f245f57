"""A suite's results as a table like the paper's, with the paper's numbers next to ours.

Acc. is the accuracy over all classes after the last task, F. the paper's forgetting (see
`evaluate.metrics.forgetting_paper`; the JSON has the standard one), C. the control accuracy. A
pareto suite has Acc. and the points that were lost, and the best learning rate of each method. A
stream of several data sets has Transfer, Average and Last (`evaluate.metrics`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import mean, stdev
from typing import Any

from retouch.bench.cell import seeds_text
from retouch.bench.engines.events import CellResult
from retouch.bench.pareto import points as pareto
from retouch.bench.pareto.points import MAX_DROP, BestRate
from retouch.bench.suite import Suite
from retouch.evaluate import metrics

MOST_NAMED = 5
"""More missing cells than this are counted, not named."""


def notes(suite: Suite, done: Sequence[CellResult]) -> list[str]:
    """Sentences to be printed below a table."""
    reasons = dict.fromkeys(reason for d in done for reason in d.cell.differs)
    if not all(d.all_images for d in done):
        reasons["not all images of the data set"] = None
    columns = _pareto_columns(done) if suite.kind == "pareto" else [_forgetting(done)]
    columns = _stream_columns(done) if suite.stream else columns
    sentences = [
        f"Not the paper's setting: {'; '.join(reasons)}." if reasons else "",
        _seeds(done),
        _missing(done),
        *columns,
    ]
    if noted := dict.fromkeys(d.cell.row for d in done if d.results.notes):
        sentences.append(f"table.json has the warnings of some runs ({', '.join(noted)}).")
    return [sentence for sentence in sentences if sentence]


def _seeds(done: Sequence[CellResult]) -> str:
    seeds = list(dict.fromkeys(d.cell.seed for d in done))
    if len(seeds) == 1:
        return f"One run each, with {seeds_text(seeds)}."
    return f"Means over {seeds_text(seeds)}; ± is the standard deviation."


def _missing(done: Sequence[CellResult]) -> str:
    """Cells that are not finished: means without them are of fewer seeds or data sets."""
    finished = dict.fromkeys((d.cell.row, d.cell.dataset, d.cell.seed) for d in done)
    rows, datasets, seeds = (dict.fromkeys(values) for values in zip(*finished, strict=True))
    missing = [cell for cell in product(rows, datasets, seeds) if cell not in finished]
    if not missing:
        return ""
    named = [f"{row} on {dataset} with seed {seed}" for row, dataset, seed in missing[:MOST_NAMED]]
    more = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
    return f"Not finished, so not in the means: {'; '.join(named)}{more}."


def _forgetting(done: Sequence[CellResult]) -> str:
    if all("forgetting_paper" in d.results.metrics() for d in done):
        return "F. is the paper's forgetting; table.json has the standard one."
    return (
        "F. is the paper's forgetting; it is not known where a model was evaluated only after the "
        "last task."
    )


def _stream_columns(done: Sequence[CellResult]) -> list[str]:
    names = ", ".join(done[0].results.domains)
    return [
        f"One stream: {names}. Transfer: mean accuracy on a data set before its turn. Average: "
        "over the whole run. Last: at the end. table.json has every data set after every task."
    ]


def _pareto_columns(done: Sequence[CellResult]) -> list[str]:
    lost = {
        "control_drop": "Lost: points of control accuracy lost.",
        "forgetting": "Lost: points forgotten of the new classes, as there is no control set.",
        "": "What was lost is not known: there is no control set, and models were evaluated only "
        "after the last task.",
    }[pareto.loss_metric(done)]
    bold = "Bold: on the frontier, as no other has a higher accuracy at the same loss or less."
    return [lost, bold] if pareto.loss_metric(done) else [lost]


COLUMNS = ("Acc.", "F.", "C.")
PARETO_COLUMNS = ("Acc.", "Lost")
STREAM_COLUMNS = ("Transfer", "Average", "Last", "C.")
AVERAGE = ("Acc. In.", "Avg. F.", "C. Drop")
HIGHER_IS_BETTER = {"Acc.": True, "F.": False, "C.": True}
HIGHER_IS_BETTER |= {"Acc. In.": True, "Avg. F.": False, "C. Drop": False}
HIGHER_IS_BETTER |= {"Transfer": True, "Average": True, "Last": True}
_METRICS = {"Acc.": "accuracy", "F.": "forgetting_paper", "C.": "control"}
_METRICS |= {"Transfer": "transfer", "Average": "average", "Last": "last"}


@dataclass
class Entry:
    """One number: mean and standard deviation over seeds, and the paper's number."""

    mean: float | None
    deviation: float | None = None
    paper: float | None = None
    same_setting: bool = False
    best: bool = False
    range: tuple[float, float] | None = None
    """The lowest and the highest value of all seeds."""

    def text(self) -> str:
        if self.mean is None:
            return "–"
        spread = f" ± {self.deviation:.1f}" if self.deviation is not None else ""
        text = f"{round(self.mean, 1) + 0.0:.1f}{spread}"  # never -0.0
        if self.paper is None:
            return text
        return f"{text} ({self.paper:.1f}{'' if self.same_setting else '*'})"


@dataclass
class Table:
    """Rows of entries by (data set, column)."""

    suite: Suite
    datasets: list[str]
    rows: dict[str, dict[tuple[str, str], Entry]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)
    max_drop: float = MAX_DROP
    best_rates: list[BestRate] = field(default_factory=list)
    """Of a pareto suite with a control set: every method at its best within `max_drop`."""

    @property
    def columns(self) -> list[tuple[str, str]]:
        if self.suite.kind == "pareto":
            return [(dataset, column) for dataset in self.datasets for column in PARETO_COLUMNS]
        if self.suite.stream:
            return [(dataset, column) for dataset in self.datasets for column in STREAM_COLUMNS]
        columns = [(dataset, column) for dataset in self.datasets for column in COLUMNS]
        return columns + [("average", column) for column in AVERAGE]


def tabulate(suite: Suite, done: Sequence[CellResult], max_drop: float = MAX_DROP) -> Table:
    """Means over seeds, and averages over data sets as in the paper.

    A pareto suite also has the best learning rates at which at most `max_drop` points are lost.
    """
    table = Table(suite, list(dict.fromkeys(d.cell.dataset for d in done)), max_drop=max_drop)
    table.runs = [_run(d) for d in done]
    for name in dict.fromkeys(d.cell.row for d in done):
        cells = [d for d in done if d.cell.row == name]
        if suite.kind == "pareto":
            table.rows[name] = _pareto_row(cells, table.datasets, pareto.loss_metric(done))
        else:
            table.rows[name] = _row(suite, name, cells, table.datasets)
    if suite.kind == "pareto":
        _mark_frontier(table, done)
        table.best_rates = pareto.best_rates(done, max_drop)
    else:
        for column in table.columns:
            _mark_best(table, column)
    table.notes = notes(suite, done)
    return table


def _pareto_row(
    done: Sequence[CellResult], datasets: Sequence[str], loss_metric: str
) -> dict[tuple[str, str], Entry]:
    entries = {}
    for dataset in datasets:
        measured = [d.results.metrics() for d in done if d.cell.dataset == dataset]
        for column, metric in zip(PARETO_COLUMNS, ("accuracy", loss_metric), strict=True):
            entries[dataset, column] = _entry([m.get(metric) for m in measured], None, False)
    return entries


def _row(
    suite: Suite, name: str, done: Sequence[CellResult], datasets: Sequence[str]
) -> dict[tuple[str, str], Entry]:
    suite_row = next((row for row in suite.rows if row.name == name), None)
    paper = suite_row.paper if suite_row else {}
    entries = {}
    for dataset in datasets:
        cells = [d for d in done if d.cell.dataset == dataset]
        published = (*paper.get(dataset, (None,) * 3), None)
        for index, column in enumerate(STREAM_COLUMNS if suite.stream else COLUMNS):
            values = [_value(d, column) for d in cells]
            entries[dataset, column] = _entry(values, published[index], _same_setting(cells))
    if suite.stream:
        return entries
    all_datasets = "average" in paper and set(datasets) == set(paper) - {"average"}
    seeds = sorted({d.cell.seed for d in done})
    for index, column in enumerate(AVERAGE):
        values = [_average([d for d in done if d.cell.seed == s], column) for s in seeds]
        paper_value = paper["average"][index] if all_datasets else None
        entries["average", column] = _entry(values, paper_value, _same_setting(done))
    return entries


def _same_setting(done: Sequence[CellResult]) -> bool:
    """Whether these cells were run in the paper's setting."""
    return all(d.all_images and not d.cell.differs for d in done)


def _learns_nothing(done: CellResult) -> bool:
    """Whether the model cannot forget what it learned, as it learns nothing."""
    recipe = done.cell.recipe
    return recipe.trains_nothing and not recipe.adds_class_vectors


def _value(done: CellResult, column: str) -> float | None:
    if _learns_nothing(done) and column == "F.":
        return None
    return done.results.metrics().get(_METRICS[column])


def _average(done: Sequence[CellResult], column: str) -> float | None:
    measured = [d.results.metrics() for d in done]
    if column == "Acc. In.":
        accuracies = [m["accuracy"] for m in measured]
        return metrics.accuracy_increase(accuracies, [m["frozen_accuracy"] for m in measured])
    if column == "Avg. F.":
        if any(map(_learns_nothing, done)):
            return None
        if not all("forgetting_paper" in m for m in measured):
            return None
        return metrics.average_forgetting([m["forgetting_paper"] for m in measured])
    if not all("control" in m for m in measured):
        return None
    before = [m["control_before"] for m in measured]
    return metrics.average_control_drop([m["control"] for m in measured], before)


def _entry(values: Sequence[float | None], paper: float | None, same: bool) -> Entry:
    known = [v for v in values if v is not None]
    if not known:
        return Entry(None, paper=paper, same_setting=same)
    deviation = stdev(known) if len(known) > 1 else None
    return Entry(mean(known), deviation, paper, same, range=(min(known), max(known)))


def _mark_best(table: Table, column: tuple[str, str]) -> None:
    entries = [row[column] for row in table.rows.values() if row[column].mean is not None]
    if len(entries) < 2:
        return
    values = [round(e.mean, 1) for e in entries if e.mean is not None]
    best = max(values) if HIGHER_IS_BETTER[column[1]] else min(values)
    for entry, value in zip(entries, values, strict=True):
        entry.best = value == best


def _mark_frontier(table: Table, done: Sequence[CellResult]) -> None:
    """In a pareto suite, the best are all rows on the frontier of a data set."""
    points = pareto.points(done)
    for dataset in table.datasets:
        for point in pareto.frontier([p for p in points if p.dataset == dataset]):
            for column in PARETO_COLUMNS:
                table.rows[point.row][dataset, column].best = True


def _run(done: CellResult) -> dict[str, Any]:
    """A cell with everything that the table is made from."""
    cell, results = done.cell, done.results
    return {
        "row": cell.row,
        "method": results.method,
        "dataset": cell.dataset,
        "seed": cell.seed,
        "model": cell.model,
        "change": cell.change,
        "settings": results.settings,
        "differs": cell.differs,
        "metrics": results.metrics(),
        "matrix": results.matrix,
        **(
            {"domains": results.domains, "domain_matrix": results.domain_matrix}
            if cell.datasets
            else {}
        ),
        "control": [row.control for row in results.rows],
        "parameters": results.parameters,
        "trained": results.trained,
        "seconds": results.seconds,
        "environment": results.environment,
        "notes": results.notes,
    }
