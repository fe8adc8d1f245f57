"""Write what a suite found: tables for people, for papers and for programs."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from retouch.bench import efficiency, pareto, table
from retouch.bench.engines import Done
from retouch.bench.runner import Bench
from retouch.files import write_atomically
from retouch.plotting.rendering import to_png, to_svg


def write_table(out: Path, made: table.Table) -> None:
    """`table.md`, `.csv`, `.tex` and `.json`."""
    out.mkdir(parents=True, exist_ok=True)
    forms = {
        "md": table.to_markdown,
        "csv": table.to_csv,
        "tex": table.to_latex,
        "json": table.to_json,
    }
    for ending, form in forms.items():
        write_atomically(out / f"table.{ending}", form(made))


def write_pareto(out: Path, done: Sequence[Done]) -> dict[str, float]:
    """`pareto.png`, `.svg` and `.json`; returns the areas."""
    figure, areas = pareto.draw(done), pareto.areas(done)
    write_atomically(out / "pareto.png", to_png(figure))
    write_atomically(out / "pareto.svg", to_svg(figure, "pareto"))
    found = [asdict(point) for point in pareto.points(done)]
    told = {"lost": pareto.loss_metric(done), "points": found, "areas": areas}
    write_atomically(out / "pareto.json", json.dumps(told, indent=1))
    return areas


def write_costs(bench: Bench, found: list[efficiency.MethodCost]) -> None:
    """`table.md` and `table.json`."""
    bench.out.mkdir(parents=True, exist_ok=True)
    suite = bench.suite
    text = efficiency.to_markdown(found, suite.title, suite.source)
    write_atomically(bench.out / "table.md", text)
    told = {"model": bench.model, "rows": [asdict(cost) for cost in found]}
    write_atomically(bench.out / "table.json", json.dumps(told, indent=1))
