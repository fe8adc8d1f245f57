"""`retouch bench`."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retouch.cli.bench_options import (
    check_cells,
    named,
    rates,
    refuse_contradictions,
    refuse_what_trains,
)
from retouch.cli.console import out, progress, user_errors, with_ranks
from retouch.cli.options import (
    Cache,
    Compile,
    Device,
    Model,
    NoCache,
    Precision,
    Root,
    SkipBad,
)
from retouch.errors import UserError
from retouch.output_paths import check_folder

if TYPE_CHECKING:
    from retouch.bench import Bench, Done, Engine
    from retouch.bench.live_table import ProgressView

Names = Annotated[str | None, typer.Option(help="Only these, with commas.")]


def bench(
    ctx: typer.Context,
    suite: Annotated[
        str,
        typer.Argument(
            help="table1, layers, scores, rate, buffer, localization, neuron, task-length, "
            "samples, efficiency, demo, pareto, or a YAML file of your own."
        ),
    ],
    model: Model = "openai/clip-vit-base-patch16",
    folder: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where results go. [default: runs/SUITE]")
    ] = None,
    methods: Names = None,
    datasets: Names = None,
    seeds: Annotated[int, typer.Option(help="Run each so often.", min=1)] = 1,
    control: Annotated[
        str | None, typer.Option(help="Another control set than the suite's.")
    ] = None,
    reference: Annotated[
        str | None, typer.Option(help="Images with captions, for zscl and lora-ewc.")
    ] = None,
    tasks: Annotated[int | None, typer.Option(help="Another number of tasks.", min=1)] = None,
    epochs: Annotated[int | None, typer.Option(help="Another number of epochs.", min=0)] = None,
    batch: Annotated[int | None, typer.Option(help="Another batch size.", min=2)] = None,
    lr: Annotated[
        str | None,
        typer.Option(help="Another learning rate, for all rows; for pareto several, with commas."),
    ] = None,
    data_root: Root = None,
    cache: Cache = None,
    no_cache: NoCache = False,
    skip_bad: SkipBad = False,
    device: Device = "auto",
    precision: Precision = "auto",
    compiled: Compile = None,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Go on with what is in the folder.")
    ] = True,
    quick: Annotated[
        bool, typer.Option("--quick", help="On 'builtin' data: few pictures, one epoch.")
    ] = False,
    keep_deltas: Annotated[
        bool, typer.Option("--keep-deltas", help="Keep what every task of every cell changed.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the cells and estimate time and disk.")
    ] = False,
    jobs: Annotated[
        int | None, typer.Option(help="So many cells at a time, each in a process.", min=1)
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(help="ray, or ray://HOST:PORT: on a Ray cluster.", metavar="WHERE"),
    ] = None,
    gpus_per_cell: Annotated[
        float | None, typer.Option(help="With Ray; 0.5 lets two share one.", min=0)
    ] = None,
    cpus_per_cell: Annotated[float | None, typer.Option(help="With Ray.", min=1)] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Nothing but the table at the end.")
    ] = False,
) -> None:
    """Run a table of the paper, or any part of it, and print it beside the paper's numbers.

    Finished cells are never run twice: a run that was killed goes on with the same command.
    """
    place = folder or Path("runs") / Path(suite).stem
    with user_errors(place), with_ranks(device) as device:
        from retouch.bench.cell import Options
        from retouch.bench.datasets import BenchData, model_maker
        from retouch.bench.engines import Serial, check_engine, engine
        from retouch.bench.live_table import progress_view
        from retouch.bench.runner import Bench
        from retouch.bench.suite import load_defaults, load_suite
        from retouch.bench.worker import check_hardware
        from retouch.data.cache import no_progress

        check_folder(place)
        refuse_contradictions(ctx)
        check_engine(on, jobs, gpus_per_cell, cpus_per_cell)
        if not resume and (place / "cells").exists():
            raise UserError(f"{place} holds cells already; choose another --out, or --resume")
        chosen = load_suite(suite).only(named("--methods", methods))
        if chosen.kind == "efficiency":
            refuse_what_trains(ctx, chosen.name)
        base = load_defaults("builtin" if model == "builtin" else "paper")
        field = BenchData(
            model_maker(model, device),
            data_root,
            cache,
            reference or base.reference,
            use_cache=not no_cache and not dry_run,
            skip_bad=skip_bad and not dry_run,
            small=quick,
            progress=no_progress if quiet else progress,
        )
        trains = chosen.kind != "efficiency" and not dry_run
        where = engine(on, jobs, device, gpus_per_cell, cpus_per_cell) if trains else Serial()
        computes = where.ask(partial(check_hardware, model, device, precision, compiled))
        options = Options(
            datasets=tuple(named("--datasets", datasets)),
            seeds=seeds,
            control=control,
            tasks=tasks,
            epochs=1 if quick and epochs is None else epochs,
            batch=batch,
            precision=None if precision == "auto" else precision,
            compile=compiled,
            replay=50 if quick else None,
            lr=rates(lr),
            machine=computes.settings,
        )
        made = Bench(chosen, field, model, place, options, keep_deltas=keep_deltas)
        check_cells(made, quick=quick, reference=reference)
        if dry_run:
            _plan(made)
        elif trains:
            _run(made, where, progress_view(made.cells, out, quiet=quiet or out.quiet))
        else:
            _count(made)


def _run(made: "Bench", where: "Engine", shown: "ProgressView") -> None:
    from retouch.bench.runner import Incomplete

    try:
        with shown:
            done = made.run(where, shown)
    except Incomplete as some:
        if some.done:
            _show(made, some.done)
        raise
    if done:  # else another process has it
        _show(made, done)


def _show(made: "Bench", done: "Sequence[Done]") -> None:
    from retouch.bench import table
    from retouch.bench.write import write_pareto, write_table

    tabulated = table.tabulate(made.suite, done)
    write_table(made.out, tabulated)
    for part in table.to_rich(tabulated):
        out.print(part)
    if made.suite.kind == "pareto":
        areas = write_pareto(made.out, done)
        for name, area in areas.items():
            out.print(f"{name}: {area:.1f} % on average at up to 5 points of control accuracy lost")
        if not areas:
            out.print(
                "There is no control set, so what was lost of earlier knowledge is not known; "
                "pareto.png shows how much of the new classes was forgotten.",
                highlight=False,
            )
    out.print(f"More in {made.out}", highlight=False, soft_wrap=True)


def _count(made: "Bench") -> None:
    from retouch.bench import efficiency
    from retouch.bench.write import write_costs
    from retouch.distributed import collectives

    found = efficiency.costs(made)
    if not collectives.is_rank0():
        return
    write_costs(made, found)
    out.print(efficiency.to_rich(found, made.suite.title))
    out.print(f"More in {made.out}", highlight=False, soft_wrap=True)


def _plan(made: "Bench") -> None:
    from rich.table import Table

    from retouch.bench.estimate import estimate
    from retouch.plural import count
    from retouch.report.phrasing import duration, file_size

    shown = Table("row", "method", "data", "seed", "tasks", "settings", box=None)
    for cell in made.cells:
        changes = {**cell.settings, **cell.change}
        told = " ".join(f"{key}={value}" for key, value in changes.items())
        where = f"{cell.dataset}", f"{cell.seed}", f"{cell.tasks}"
        shown.add_row(cell.row, cell.method, *where, told)
    out.print(shown)
    if made.suite.kind == "efficiency":
        return
    about = estimate(made)
    out.print(
        f"{count(about.cells, 'cell')}, one after the other roughly {duration(about.seconds)} and "
        f"{file_size(about.bytes)} of disk, estimated from one forward and backward pass on this "
        "machine",
        highlight=False,
        soft_wrap=True,
    )
