"""`retouch bench`."""

from functools import partial
from typing import TYPE_CHECKING

from retouch.cli.bench.checks import (
    check_cells,
    parse_seeds,
    refuse_lost_at_most,
    refuse_training_options,
    split_names,
    split_rates,
)
from retouch.cli.bench.config import BenchConfig
from retouch.cli.options import command
from retouch.cli.terminal.console import out, progress, user_errors, with_ranks
from retouch.files.output_paths import check_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retouch.bench import Bench, CellResult, Engine
    from retouch.bench.suite import Suite
    from retouch.bench.tables.live import ProgressView

QUICK_REPLAY = 50
"""Images in the replay buffer with --quick."""


@command(BenchConfig)
def bench(config: BenchConfig) -> None:
    """Run a table of the paper, or any part of it, and print it beside the paper's numbers.

    Finished cells are never run twice: the same command resumes a run that was killed.
    """
    with user_errors(config.folder), with_ranks(config.machine.device) as device:
        from retouch.bench.tables.live import progress_view

        suite = _check(config)
        trains = suite.kind != "efficiency" and not config.output.dry_run
        engine = _engine(config, device, trains)
        runner = _make_bench(config, suite, device, engine)
        check_cells(runner, quick=config.suite.quick, reference=config.data.reference)
        if config.output.dry_run:
            _show_plan(runner)
        elif trains:
            view = progress_view(runner.cells, out, quiet=config.output.quiet or out.quiet)
            _run(runner, engine, view, config.output.lost_at_most)
        else:
            _count_parameters(runner)


def _check(config: BenchConfig) -> "Suite":
    """The suite, if the options fit it."""
    from retouch.bench.engines.choice import check_engine
    from retouch.bench.suite import load_suite
    from retouch.bench.tables.write import check_tables

    machine = config.machine
    check_folder(config.folder)
    check_engine(machine.on, machine.jobs)
    suite = load_suite(config.suite.suite).only(split_names("--methods", config.suite.methods))
    if suite.kind == "efficiency":
        refuse_training_options(config, suite.name)
    refuse_lost_at_most(config, suite)
    check_tables(config.folder)
    return suite


def _engine(config: BenchConfig, device: str, trains: bool) -> "Engine":
    from retouch.bench import Serial, engine

    machine = config.machine
    if not trains:
        return Serial()
    return engine(machine.on, machine.jobs, device)


def _make_bench(config: BenchConfig, suite: "Suite", device: str, engine: "Engine") -> "Bench":
    from retouch.bench.cells import Options
    from retouch.bench.datasets import BenchData, model_maker
    from retouch.bench.engines.worker import check_hardware
    from retouch.bench.runner import Bench
    from retouch.bench.suite import load_defaults
    from retouch.data.loading.progress import no_progress

    data, training, machine, output = config.data, config.training, config.machine, config.output
    model, quick = config.suite.model, config.suite.quick
    defaults = load_defaults("builtin" if model == "builtin" else "paper")
    datasets = BenchData(
        model_maker(model, device),
        data.data_root,
        reference=data.reference or defaults.reference,
        use_cache=not data.no_cache and not output.dry_run,
        skip_bad=data.skip_bad and not output.dry_run,
        small=quick,
        progress=no_progress if output.quiet else progress,
    )
    check = partial(check_hardware, model, device, machine.precision, machine.compiled)
    options = Options(
        datasets=tuple(split_names("--datasets", config.suite.datasets)),
        seeds=parse_seeds(config.suite.seeds),
        control=data.control,
        tasks=training.tasks,
        epochs=1 if quick and training.epochs is None else training.epochs,
        batch=training.batch,
        precision=None if machine.precision == "auto" else machine.precision,
        compile=machine.compiled,
        replay=QUICK_REPLAY if quick else None,
        lr=split_rates(training.lr),
        machine=engine.call(check).settings,
    )
    return Bench(suite, datasets, model, config.folder, options, keep_deltas=output.keep_deltas)


def _run(bench: "Bench", engine: "Engine", view: "ProgressView", lost_at_most: float) -> None:
    from retouch.bench.runner import Incomplete

    try:
        with view:
            done = bench.run(engine, view)
    except Incomplete as incomplete:
        if incomplete.done:
            _show(bench, incomplete.done, lost_at_most)
        raise
    if done:  # otherwise another rank has the results
        _show(bench, done, lost_at_most)


def _show(bench: "Bench", done: "Sequence[CellResult]", lost_at_most: float) -> None:
    from retouch.bench.tables.formats import to_rich
    from retouch.bench.tables.table import tabulate
    from retouch.bench.tables.write import write_pareto, write_table

    table = tabulate(bench.suite, done, lost_at_most)
    write_table(bench.out, table)
    for part in to_rich(table):
        out.print(part)
    if bench.suite.kind == "pareto":
        metric = write_pareto(bench.out, done, lost_at_most)
        if metric != "control_drop":
            shown = "pareto.png shows how much of the new classes was forgotten"
            nothing = "nor is how much of the new classes was forgotten, so there is no figure"
            out.print(
                "There is no control set, so what was lost of earlier knowledge is not known; "
                f"{shown if metric else nothing}.",
                highlight=False,
            )
    out.print(f"More in {bench.out}", highlight=False, soft_wrap=True)


def _count_parameters(bench: "Bench") -> None:
    from retouch.bench.tables import efficiency
    from retouch.bench.tables.write import write_costs
    from retouch.distributed import collectives

    costs = efficiency.costs(bench)
    if not collectives.is_rank0():
        return
    write_costs(bench, costs)
    out.print(efficiency.to_rich(costs, bench.suite.title))
    out.print(f"More in {bench.out}", highlight=False, soft_wrap=True)


def _show_plan(bench: "Bench") -> None:
    from rich.table import Table

    from retouch.bench.estimate import estimate
    from retouch.plotting.formatting import duration, file_size
    from retouch.text.plural import count

    table = Table("row", "method", "data", "seed", "tasks", "settings", box=None)
    for cell in bench.cells:
        changes = {**cell.settings, **cell.change}
        settings = " ".join(f"{key}={value}" for key, value in changes.items())
        where = f"{cell.dataset}", f"{cell.seed}", f"{cell.total_tasks}"
        table.add_row(cell.row, cell.method, *where, settings)
    out.print(table)
    if bench.suite.kind == "efficiency":
        return
    cost = estimate(bench)
    out.print(
        f"{count(cost.cells, 'cell')}, one after the other roughly {duration(cost.seconds)} and "
        f"{file_size(cost.bytes)} of disk, estimated from training steps that were timed "
        "on this machine",
        highlight=False,
        soft_wrap=True,
    )
