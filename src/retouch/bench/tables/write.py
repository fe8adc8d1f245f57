"""Write the results of a suite: tables for people, for papers and for programs."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from retouch.bench.engines.events import CellResult
from retouch.bench.pareto import figure as pareto_figure
from retouch.bench.pareto import points as pareto
from retouch.bench.runner import Bench
from retouch.bench.tables import efficiency
from retouch.bench.tables import formats as table_formats
from retouch.bench.tables.table import Table
from retouch.files.output_paths import foreign_file
from retouch.files.write import write_atomically
from retouch.plotting.rendering import to_png, to_svg

_FILES = ("table.json", "table.md", "table.csv", "table.tex")


def check_tables(out: Path) -> None:
    """Refuse a folder with tables that a bench would replace, but did not write.

    What a bench wrote has a `table.json` beside it that says so.
    """
    existing = [out / name for name in _FILES if (out / name).exists()]
    if existing and not _is_table(out / _FILES[0]):
        raise foreign_file(existing[0])


def _is_table(file: Path) -> bool:
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and "rows" in content


def write_table(out: Path, table: Table) -> None:
    """`table.md`, `.csv`, `.tex` and `.json`."""
    check_tables(out)
    out.mkdir(parents=True, exist_ok=True)
    formats = {
        "json": table_formats.to_json,  # first, in case this is killed
        "md": table_formats.to_markdown,
        "csv": table_formats.to_csv,
        "tex": table_formats.to_latex,
    }
    for suffix, to_text in formats.items():
        write_atomically(out / f"table.{suffix}", to_text(table))


def write_pareto(out: Path, done: Sequence[CellResult], max_drop: float = pareto.MAX_DROP) -> str:
    """`pareto.png`, `.svg` and `.json`; returns the metric of loss.

    Without one there is nothing to draw, and nothing is written.
    """
    metric = pareto.loss_metric(done)
    if not metric:
        return ""
    figure = pareto_figure.draw(done, max_drop)
    write_atomically(out / "pareto.png", to_png(figure))
    write_atomically(out / "pareto.svg", to_svg(figure, "pareto"))
    points = [asdict(point) for point in pareto.points(done)]
    content = {"lost": metric, "points": points, "areas": pareto.areas(done)}
    write_atomically(out / "pareto.json", json.dumps(content, indent=1))
    return metric


def write_costs(bench: Bench, costs: list[efficiency.MethodCost]) -> None:
    """`table.md` and `table.json`."""
    check_tables(bench.out)
    bench.out.mkdir(parents=True, exist_ok=True)
    suite = bench.suite
    content = {"model": bench.model, "rows": [asdict(cost) for cost in costs]}
    write_atomically(bench.out / "table.json", json.dumps(content, indent=1))
    text = efficiency.to_markdown(costs, suite.title, suite.source)
    write_atomically(bench.out / "table.md", text)
