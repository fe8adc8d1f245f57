"""The options of `retouch bench`, in the groups that `--help` shows."""

from pathlib import Path
from typing import Annotated, ClassVar

import typer

from retouch.cli.options import (
    ComputeOptions,
    Config,
    Model,
    NoCache,
    OptionGroup,
    Root,
    SkipBad,
)

Names = Annotated[str | None, typer.Option(help="Only these, separated by commas.")]


class SuiteOptions(OptionGroup):
    panel: ClassVar[str] = "Suite"

    suite: Annotated[
        str,
        typer.Argument(
            metavar="SUITE",
            help="table1, layers, scores, rate, buffer, localization, neuron, task-length, "
            "samples, efficiency, demo, pareto, mtil, mtil-2, x-tail, or a YAML file of your own.",
        ),
    ]
    model: Model = "openai/clip-vit-base-patch16"
    methods: Names = None
    datasets: Names = None
    seeds: Annotated[
        str,
        typer.Option(
            help="Run each row with these seeds: 1,2,3 or 1-3. A single number is how many: 3 is "
            "0,1,2."
        ),
    ] = "1"
    quick: Annotated[
        bool, typer.Option("--quick", help="For 'builtin' data: fewer images, one epoch.")
    ] = False


class DataOptions(OptionGroup):
    panel: ClassVar[str] = "Data"

    control: Annotated[str | None, typer.Option(help="Control set, instead of the suite's.")] = None
    reference: Annotated[
        str | None, typer.Option(help="Images with captions, for zscl and lora-ewc.")
    ] = None
    data_root: Root = None
    no_cache: NoCache = False
    skip_bad: SkipBad = False


class TrainingOptions(OptionGroup):
    panel: ClassVar[str] = "Training"

    tasks: Annotated[
        int | None, typer.Option(help="Number of tasks, instead of the suite's.", min=1)
    ] = None
    epochs: Annotated[
        int | None, typer.Option(help="Number of epochs, instead of the suite's.", min=0)
    ] = None
    batch: Annotated[
        int | None, typer.Option(help="Batch size, instead of the suite's.", min=2)
    ] = None
    lr: Annotated[
        str | None,
        typer.Option(help="Learning rate of all rows; for pareto, several separated by commas."),
    ] = None


class MachineOptions(ComputeOptions):
    jobs: Annotated[
        int | None, typer.Option(help="Run N cells at a time, each in its own process.", min=1)
    ] = None
    on: Annotated[
        str | None,
        typer.Option(help="Run on a Ray cluster: ray, or ray://HOST:PORT.", metavar="WHERE"),
    ] = None


class OutputOptions(OptionGroup):
    panel: ClassVar[str] = "Output"

    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where results go. [default: runs/SUITE]")
    ] = None
    keep_deltas: Annotated[
        bool, typer.Option("--keep-deltas", help="Store the delta of every task of every cell.")
    ] = False
    lost_at_most: Annotated[
        float,
        typer.Option(
            help="For pareto: show each method's best learning rate among those at which it loses "
            "at most this many points of control accuracy.",
            min=0,
        ),
    ] = 0.5
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the cells and estimate time and disk.")
    ] = False
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print nothing but the table at the end.")
    ] = False


class BenchConfig(Config):
    """What `retouch bench` was asked to do."""

    suite: SuiteOptions
    data: DataOptions
    training: TrainingOptions
    machine: MachineOptions
    output: OutputOptions

    @property
    def folder(self) -> Path:
        return self.output.out or Path("runs") / Path(self.suite.suite).stem
