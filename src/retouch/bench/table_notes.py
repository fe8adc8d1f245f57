"""What a reader of a table must know: its seeds, its setting, and what is missing in it."""

from collections.abc import Sequence
from itertools import product

from retouch.bench import pareto
from retouch.bench.cell import seeds_text
from retouch.bench.events import Done
from retouch.bench.suite import Suite

MOST_NAMED = 5
"""More missing cells than this are counted, not named."""


def notes(suite: Suite, done: Sequence[Done]) -> list[str]:
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


def _seeds(done: Sequence[Done]) -> str:
    seeds = list(dict.fromkeys(d.cell.seed for d in done))
    if len(seeds) == 1:
        return f"One run each, with {seeds_text(seeds)}."
    return f"Means over {seeds_text(seeds)}; ± is the standard deviation."


def _missing(done: Sequence[Done]) -> str:
    """Cells that are not finished: means without them are of fewer seeds or data sets."""
    finished = dict.fromkeys((d.cell.row, d.cell.dataset, d.cell.seed) for d in done)
    rows, datasets, seeds = (dict.fromkeys(values) for values in zip(*finished, strict=True))
    missing = [cell for cell in product(rows, datasets, seeds) if cell not in finished]
    if not missing:
        return ""
    named = [f"{row} on {dataset} with seed {seed}" for row, dataset, seed in missing[:MOST_NAMED]]
    more = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
    return f"Not finished, so not in the means: {'; '.join(named)}{more}."


def _forgetting(done: Sequence[Done]) -> str:
    if all("forgetting_paper" in d.results.metrics() for d in done):
        return "F. is the paper's forgetting; table.json has the standard one."
    return (
        "F. is the paper's forgetting; it is not known where a model was evaluated only after the "
        "last task."
    )


def _stream_columns(done: Sequence[Done]) -> list[str]:
    names = ", ".join(done[0].results.domains)
    return [
        f"One stream: {names}. Transfer: mean accuracy on a data set before its turn. Average: "
        "over the whole run. Last: at the end. table.json has every data set after every task."
    ]


def _pareto_columns(done: Sequence[Done]) -> list[str]:
    lost = {
        "control_drop": "Lost: points of control accuracy lost.",
        "forgetting": "Lost: points forgotten of the new classes, as there is no control set.",
        "": "What was lost is not known: there is no control set, and models were evaluated only "
        "after the last task.",
    }[pareto.loss_metric(done)]
    bold = "Bold: on the frontier, as no other has a higher accuracy at the same loss or less."
    return [lost, bold] if pareto.loss_metric(done) else [lost]
