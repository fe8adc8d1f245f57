"""One number of a table: a row, a data set and a seed, run into a folder of its own."""

import json
import re
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from retouch import checksummed
from retouch.bench.suite import BenchDefaults, Suite, SuiteRow
from retouch.errors import UserError
from retouch.evaluate import Results
from retouch.methods import Method, Settings, recipe
from retouch.plural import count

FILE, DONE = "cell.json", "done.json"
REMEDY = "delete the cell's folder, and the same command runs it again"


@dataclass(frozen=True)
class Cell:
    """What is to be run."""

    row: str
    method: str
    dataset: str
    seed: int
    model: str
    tasks: int
    control: str | None
    change: dict[str, Any]
    settings: dict[str, Any]
    differs: list[str] = field(default_factory=list, compare=False)
    """In what this is not the paper's setting."""

    @property
    def recipe(self) -> Method:
        return recipe(self.method, self.change)

    @property
    def training(self) -> Settings:
        return Settings(**self.settings, seed=self.seed)

    @property
    def title(self) -> str:
        """No other cell of a suite is called so."""
        return f"{self.row}, {self.dataset}, seed {self.seed}"

    def folder(self, out: Path) -> Path:
        rate = f" lr={self.settings['lr']:g}" if "@" in self.row else ""
        names = self.row.split("@")[0] + rate, self.dataset
        row, data = (re.sub(r"[^A-Za-z0-9.+=-]+", "-", name).strip("-") for name in names)
        return out / "cells" / row / data / f"seed-{self.seed}"

    def begin(self, out: Path) -> Path:
        """Write down what will be run, and where."""
        folder = self.folder(out)
        folder.mkdir(parents=True, exist_ok=True)
        checksummed.write_json(folder / FILE, self._description())
        return self.run(out)

    def run(self, out: Path) -> Path:
        """Where its training writes."""
        return self.folder(out) / "run"

    def finished(self, out: Path) -> Results | None:
        """The results, if this very cell was run to its end before."""
        folder = self.folder(out)
        if not (folder / FILE).is_file():
            return None
        if checksummed.read_json(folder / FILE, REMEDY) != json.loads(
            json.dumps(self._description())
        ):
            raise UserError(
                f"{folder} holds a cell with other settings; choose another --out, or delete it"
            )
        if not (folder / DONE).is_file():
            return None
        found = Results.read(self.run(out))
        return found if found.finished else None

    def told(self, out: Path) -> dict[str, Any]:
        """What was written beside a finished cell."""
        return checksummed.read_json(self.folder(out) / DONE, REMEDY)

    def end(self, out: Path, told: dict[str, Any]) -> None:
        """It is run; what it took goes beside it."""
        checksummed.write_json(self.folder(out) / DONE, told)

    def drop_weights(self, out: Path) -> None:
        """Remove what a finished run keeps to go on from, and leave what it found out."""
        run = self.run(out)
        shutil.rmtree(run / "deltas", ignore_errors=True)
        for file in run.glob("*.safetensors"):
            file.unlink()

    def _description(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "differs"}


def cells(
    suite: Suite, base: BenchDefaults, model: str, options: "Options", paper: BenchDefaults
) -> list[Cell]:
    """Every cell of a suite, row by row."""
    datasets = options.datasets or suite.datasets or base.datasets
    rates = (options.lr or suite.lr or base.pareto) if suite.kind == "pareto" else (None,)
    if suite.kind != "pareto" and len(options.lr) > 1:
        raise UserError(
            f"--lr {','.join(f'{rate:g}' for rate in options.lr)}: every row of {suite.name} is "
            "run at one learning rate; give a single one, or run the suite pareto"
        )
    return [
        _cell(suite, base, line, dataset, seed, model, options, paper, rate)
        for line in suite.rows
        for rate in (rates if line.method != "frozen" else rates[:1])
        for dataset in datasets
        for seed in range(options.seeds)
    ]


@dataclass(frozen=True)
class Options:
    """What a user asked for beyond the suite; it goes before what the suite says."""

    datasets: tuple[str, ...] = ()
    seeds: int = 1
    control: str | None = None
    tasks: int | None = None
    epochs: int | None = None
    batch: int | None = None
    precision: str | None = None
    compile: bool | None = None
    replay: float | None = None
    lr: tuple[float, ...] = ()
    """One for all rows; of a pareto suite, all that are tried."""
    machine: dict[str, Any] = field(default_factory=dict)
    """Settings that suit the machine, where neither the user nor the suite chooses any."""


def _cell(
    suite: Suite,
    base: BenchDefaults,
    line: SuiteRow,
    dataset: str,
    seed: int,
    model: str,
    options: Options,
    paper: BenchDefaults,
    rate: float | None,
) -> Cell:
    named = ("epochs", "batch", "precision", "compile")
    asked = {name: getattr(options, name) for name in named}
    if suite.kind != "pareto" and options.lr:
        asked["lr"] = options.lr[0]
    settings = {
        **options.machine,
        **base.settings,
        **({"lr": base.lr[line.method]} if line.method in base.lr else {}),
        **suite.settings,
        **line.settings,
        **({"lr": rate} if rate else {}),
        **{key: value for key, value in asked.items() if value is not None},
    }
    tasks = options.tasks or line.tasks or suite.tasks or base.tasks
    change = _with_buffer(line, dataset, base, options.replay)
    differs = _differs(settings, paper, model, line, tasks, rate)
    control = options.control or suite.control or base.control
    name = f"{line.name}@{rate:g}" if rate else line.name
    return Cell(name, line.method, dataset, seed, model, tasks, control, change, settings, differs)


def _with_buffer(
    line: SuiteRow, dataset: str, base: BenchDefaults, asked: float | None
) -> dict[str, Any]:
    """The recipe's changes, with the number of images that the paper replays for a data set."""
    from retouch.data.registry import BENCHMARKS

    change = dict(line.change)
    keeps = "size" in type(recipe(line.method).replay).model_fields
    if not keeps or "replay.size" in change:
        return change
    known = BENCHMARKS[dataset].facts.buffer_size if dataset in BENCHMARKS else None
    size = asked or base.replay or known
    return change if size is None else {**change, "replay.size": size}


def _differs(
    settings: dict[str, Any],
    paper: BenchDefaults,
    model: str,
    line: SuiteRow,
    tasks: int,
    rate: float | None,
) -> list[str]:
    found = [] if model in paper.models else ["another model"]
    if rate is None:
        wanted = {**paper.settings, **line.settings}
        found += [
            f"{key} {settings[key]:g} instead of {wanted[key]:g}"
            for key in wanted
            if settings.get(key) != wanted[key]
        ]
    if tasks != (line.tasks or paper.tasks):
        found.append(f"{count(tasks, 'task')} instead of {line.tasks or paper.tasks}")
    return found
