"""The options of `retouch learn`, in the groups that `--help` shows."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

import typer

from retouch.cli.options import (
    MODEL_HELP,
    NAMES_HELP,
    ComputeOptions,
    Config,
    Json,
    NoCache,
    OptionGroup,
    Quiet,
    Root,
    Seed,
    Shard,
    SkipBad,
    complete_method,
)


class DataOptions(OptionGroup):
    panel: ClassVar[str] = "Data"

    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="DATA",
            help="A folder with a subfolder of images per class, a table, tar shards, a benchmark "
            "(NAME or NAME:SPLIT), or 'builtin'; see `retouch datasets`. Several are learned one "
            "after the other.",
            show_default=False,
        ),
    ]
    control: Annotated[
        str | None,
        typer.Option(help="Images of what the model must still know; named like DATA."),
    ] = None
    names: Annotated[Path | None, typer.Option(help=NAMES_HELP, metavar="FILE")] = None
    template: Annotated[
        list[str] | None,
        typer.Option(
            help="Prompt for a class, such as 'a photo of a {}, a kind of flower.' Repeatable: "
            "training uses the first, evaluation the mean of all.",
            show_default="a photo of {}",
        ),
    ] = None
    holdout: Annotated[
        float, typer.Option(help="Share of the images to test with, if DATA has no test part.")
    ] = 0.2
    tasks: Annotated[
        str,
        typer.Option(
            help="Split the classes into N tasks; of several DATA, those of each. 'each' is one "
            "task per DATA.",
            metavar="N",
        ),
    ] = "1"
    choices: Annotated[
        Literal["domain", "all", "seen"] | None,
        typer.Option(
            help="With several DATA, what a test image is classified among: the classes of its own "
            "DATA (domain), all classes, or those learned so far (seen).",
            show_default="domain",
        ),
    ] = None
    order: Annotated[
        str, typer.Option(help="Class order: a seed, or a file with one name per line.")
    ] = "0"
    reference: Annotated[
        str | None,
        typer.Option(help="Images with captions, for methods that need some; or 'builtin'."),
    ] = None
    data_root: Root = None
    no_cache: NoCache = False
    skip_bad: SkipBad = False


class TrainingOptions(OptionGroup):
    panel: ClassVar[str] = "Training"

    model: Annotated[str | None, typer.Option(help=MODEL_HELP)] = None
    earlier: Annotated[
        Path | None,
        typer.Option("--from", help="A finished run to continue.", metavar="RUN"),
    ] = None
    method: Annotated[
        str | None,
        typer.Option(
            help="The method; see `retouch methods`.",
            show_default="text-first",
            autocompletion=complete_method,
        ),
    ] = None
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a setting of the method: update.rate=0.05. Repeatable."),
    ] = None
    max_drop: Annotated[
        float | None,
        typer.Option(
            help="Lose at most this many points of control accuracy: a task that would cost more "
            "is scaled back.",
            min=0,
        ),
    ] = None
    replay: Annotated[
        str | None,
        typer.Option(
            help="Images the run may store to replay them later; 'none' stores no image at all, "
            "nor do runs that continue it.",
            metavar="N",
        ),
    ] = None
    epochs: Annotated[
        int | None,
        typer.Option(help="Passes over the images.", min=0, show_default="10, or more"),
    ] = None
    batch: Annotated[
        int | None, typer.Option(help="New images per step.", min=2, show_default="128, or fewer")
    ] = None
    lr: Annotated[
        float | None,
        typer.Option(help="Learning rate.", show_default="by the method and the model"),
    ] = None
    weight_decay: Annotated[
        float | None, typer.Option(help="AdamW's weight decay.", show_default="by the model")
    ] = None
    seed: Seed = 0
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="Start from random weights.")
    ] = False


class MachineOptions(ComputeOptions):
    micro_batch: Annotated[
        int | None,
        typer.Option(
            help="Images or prompts in memory at a time: the same result with less memory, slower.",
            min=1,
        ),
    ] = None
    shard: Shard = False


class OutputOptions(OptionGroup):
    panel: ClassVar[str] = "Output"

    folder: Annotated[Path, typer.Option("--out", "-o", help="The folder of the run.")]
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run that --out holds.")
    ] = False
    tensorboard: Annotated[
        Path | None, typer.Option(help="Also write curves for TensorBoard to this folder.")
    ] = None
    wandb: Annotated[
        str | None,
        typer.Option(help="Also log to this Weights & Biases project.", metavar="PROJECT"),
    ] = None
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show what would change and what it would cost, and stop."),
    ] = False
    quiet: Quiet = False
    as_json: Json = False


class LearnConfig(Config):
    """What `retouch learn` was asked to do."""

    data: DataOptions
    training: TrainingOptions
    machine: MachineOptions
    output: OutputOptions
