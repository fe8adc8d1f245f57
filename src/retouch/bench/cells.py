"""From a suite and a user's options to the cells that are run."""

from dataclasses import dataclass, field
from typing import Any

from retouch.bench.cell import Cell
from retouch.bench.suite import BenchDefaults, Suite, SuiteRow
from retouch.data.registry import data_set_names, find_benchmark
from retouch.errors import UserError
from retouch.methods import Settings, recipe
from retouch.text.plural import count

PAPER_SETTINGS: dict[str, Any] = Settings().model_dump(
    include={"epochs", "batch", "lr", "weight_decay"}
)
"""The settings that the paper states: the defaults of `Settings`."""


@dataclass(frozen=True)
class Options:
    """What a user chose; it takes precedence over the suite."""

    datasets: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    """Every row is run once with each; a seed also sets the order of the classes."""
    control: str | None = None
    tasks: int | None = None
    epochs: int | None = None
    batch: int | None = None
    precision: str | None = None
    compile: bool | None = None
    replay: float | None = None
    lr: tuple[float, ...] = ()
    """One for all rows; for a pareto suite, all that are tried."""
    machine: dict[str, Any] = field(default_factory=dict)
    """Settings that suit the machine, for what neither the user nor the suite chooses."""


def make_cells(
    suite: Suite, base: BenchDefaults, model: str, options: Options, paper: BenchDefaults
) -> list[Cell]:
    """All cells of a suite, row by row."""
    datasets = options.datasets or suite.datasets or base.datasets
    if suite.stream:
        datasets = (suite.name,)
    _check_seeds(options.seeds)
    if suite.kind != "pareto" and len(options.lr) > 1:
        raise UserError(
            f"lr={','.join(f'{lr:g}' for lr in options.lr)}: every row of {suite.name} is "
            "run at one learning rate; give a single one, or run the suite pareto"
        )
    maker = _CellMaker(suite, base, model, options, paper)
    return [
        maker.cell(row, dataset, seed, lr)
        for row in suite.rows
        for lr in maker.learning_rates(row)
        for dataset in datasets
        for seed in options.seeds
    ]


def _check_seeds(seeds: tuple[int, ...]) -> None:
    different = isinstance(seeds, tuple) and 0 < len(seeds) == len(set(seeds))
    if not different or min(seeds) < 0:
        raise UserError(
            f"seeds={seeds!r}: name one seed or more, all different and none below 0, such as "
            "seeds=(1, 2, 3)"
        )


@dataclass(frozen=True)
class _CellMaker:
    suite: Suite
    base: BenchDefaults
    model: str
    options: Options
    paper: BenchDefaults

    def learning_rates(self, row: SuiteRow) -> tuple[float | None, ...]:
        """The learning rates of a row of a pareto suite; a single None for other suites."""
        if self.suite.kind != "pareto":
            return (None,)
        values = self.options.lr or row.lr or self.suite.lr or self.base.pareto
        return values[:1] if recipe(row.method).trains_nothing else values

    def cell(self, row: SuiteRow, dataset: str, seed: int, lr: float | None) -> Cell:
        options, suite, base = self.options, self.suite, self.base
        settings = self._settings(row, lr)
        one_stream = suite.stream is not None
        tasks = options.tasks or row.tasks or suite.tasks or (1 if one_stream else base.tasks)
        joined = suite.stream.model_dump(exclude={"builtin"}) if suite.stream else {}
        return Cell(
            f"{row.name}@{lr:g}" if lr else row.name,
            row.method,
            dataset,
            seed,
            self.model,
            tasks,
            options.control or suite.control or base.control,
            self._change(row, dataset),
            settings,
            self._datasets if one_stream else (),
            joined,
            self._differences(settings, row, tasks, lr),
        )

    @property
    def _datasets(self) -> tuple[str, ...]:
        """The data sets of a stream of several."""
        assert self.suite.stream is not None
        default = self.suite.stream.builtin if self.base.small_model else self.suite.datasets
        return self.options.datasets or default

    def _settings(self, row: SuiteRow, lr: float | None) -> dict[str, Any]:
        names = ("epochs", "batch", "precision", "compile")
        requested = {name: getattr(self.options, name) for name in names}
        if self.suite.kind != "pareto" and self.options.lr:
            requested["lr"] = self.options.lr[0]
        own = {"lr": recipe(row.method).small_model_lr} if self.base.small_model else {}
        protocol = {**self.suite.settings, **row.settings}
        if self.suite.stream:
            protocol = self._stream_settings(protocol)
        return {
            **self.options.machine,
            **PAPER_SETTINGS,
            **self.base.settings,
            **own,
            **protocol,
            **({"lr": lr} if lr else {}),
            **{key: value for key, value in requested.items() if value is not None},
        }

    def _stream_settings(self, protocol: dict[str, Any]) -> dict[str, Any]:
        """What a published protocol states, as far as it applies to these data sets and options.

        The built-in model has the demo's steps and learning rates: those of a ViT-B/16 teach it
        nothing.
        """
        if self.base.small_model:
            return {key: protocol[key] for key in ("label_smoothing",) if key in protocol}
        names, options = data_set_names(self._datasets), self.options
        applied = dict(protocol)
        if "domain_lr" in protocol:
            by_domain = protocol["domain_lr"].items()
            applied["domain_lr"] = {name: lr for name, lr in by_domain if name in names}
        if options.epochs is not None:
            applied.pop("steps", None)
        if options.lr:
            applied.pop("domain_lr", None)
        return applied

    def _change(self, row: SuiteRow, dataset: str) -> dict[str, Any]:
        """The row's changes of its recipe, with the buffer size that the paper has for the data."""
        replays = "size" in type(recipe(row.method, row.change).replay).model_fields
        if not replays or "replay.size" in row.change:
            return dict(row.change)
        benchmark = find_benchmark(dataset)
        known = benchmark.facts.buffer_size if benchmark else None
        size = self.options.replay or self.base.replay or known
        return {**row.change, **({} if size is None else {"replay.size": size})}

    def _differences(
        self, settings: dict[str, Any], row: SuiteRow, tasks: int, lr: float | None
    ) -> list[str]:
        """How a cell differs from the paper's setting."""
        differences = [] if self.model in self.paper.models else ["another model"]
        if self.suite.stream:
            return differences + self._protocol_differences(settings, row, tasks)
        if lr is None:
            expected = {**PAPER_SETTINGS, **row.settings}
            differences += [
                f"{key} {settings[key]:g} instead of {expected[key]:g}"
                for key in expected
                if settings.get(key) != expected[key]
            ]
        expected_tasks = row.tasks or self.paper.tasks
        if tasks != expected_tasks:
            differences.append(f"{count(tasks, 'task')} instead of {expected_tasks}")
        return differences

    def _protocol_differences(
        self, settings: dict[str, Any], row: SuiteRow, tasks: int
    ) -> list[str]:
        """How a stream of several data sets differs from its suite, which is the protocol."""
        suite = self.suite
        expected = {**suite.settings, **row.settings}
        differences = [
            f"{key} {settings.get(key, 'not set')} instead of {expected[key]}"
            for key in expected
            if settings.get(key) != expected[key]
        ]
        if self.base.small_model:
            differences = ["steps and rates of the built-in model"]
        if self._datasets != suite.datasets:
            differences.insert(0, f"other data sets or splits ({', '.join(self._datasets)})")
        expected_tasks = row.tasks or suite.tasks or 1
        if tasks != expected_tasks:
            differences.append(f"{count(tasks, 'task')} per data set instead of {expected_tasks}")
        return differences
