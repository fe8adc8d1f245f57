"""A bench that other processes open in a moment: without transformers."""

from pathlib import Path

from letters import letters_clip

from retouch.bench import Bench, CellResult, Suite
from retouch.bench.cells import Options
from retouch.bench.datasets import BenchData

TWO_METHODS = Suite(
    title="Two methods",
    name="two",
    rows=({"name": "still", "method": "frozen"}, {"name": "ER", "method": "er"}),
)


def letters_bench(
    out: Path, photos: Path, suite: Suite = TWO_METHODS, epochs: int = 20, **data: object
) -> Bench:
    """A bench on a folder of photos that other processes can open, long enough to be killed."""
    options = Options((str(photos),), control=str(photos), tasks=2, epochs=epochs, batch=4)
    return Bench(suite, BenchData(letters_clip, **data), "builtin", out, options)


def numbers(done: list[CellResult]) -> dict[str, object]:
    """What must be the same, whoever runs the cells."""
    return {
        d.cell.row: (d.results.matrix, [row.control for row in d.results.rows], d.all_images)
        for d in done
    }
