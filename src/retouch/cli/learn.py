"""`retouch learn`."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retouch.cli.checks import (
    check_machine,
    check_out,
    check_room,
    check_stream,
    check_templates,
    find_everything,
    find_finished,
)
from retouch.cli.command import command_line
from retouch.cli.console import err, out, print_json, status, user_errors, with_ranks
from retouch.cli.images import ready, show_notes
from retouch.cli.options import (
    MODEL_HELP,
    NAMES_HELP,
    Cache,
    Compile,
    Device,
    Json,
    NoCache,
    Precision,
    Quiet,
    Root,
    Seed,
    Shard,
    SkipBad,
    methods_named,
)
from retouch.cli.plan import show_classes, show_cost, show_settings
from retouch.cli.prepare import (
    called,
    choose_method,
    cost_of,
    given,
    how_to_compute,
    inherited,
    make_stream,
    open_run,
    read_changes,
    read_order,
)
from retouch.errors import UserError
from retouch.output_paths import check_folder

if TYPE_CHECKING:
    from rich.console import Console

    from retouch.clip import Clip
    from retouch.data import Images, Stream
    from retouch.evaluate import Results
    from retouch.methods import Method
    from retouch.train import Callback
    from retouch.train.defaults import ChosenDefaults

NOTHING_KEPT = 3
"""The exit code where every step would have cost more than --max-drop."""


def learn(
    data: Annotated[
        str,
        typer.Argument(
            help="A folder of images per class, a table, shards, a benchmark's name or 'builtin'; "
            "see `retouch datasets`."
        ),
    ],
    folder: Annotated[Path, typer.Option("--out", "-o", help="Where the run is kept.")],
    model: Annotated[str | None, typer.Option(help=MODEL_HELP)] = None,
    goes_on_from: Annotated[
        Path | None,
        typer.Option("--from", help="A finished run to go on from.", metavar="RUN"),
    ] = None,
    control: Annotated[
        str | None,
        typer.Option(help="Images of what the model must still know: as DATA."),
    ] = None,
    max_drop: Annotated[
        float | None,
        typer.Option(
            help="Points of the control set that may be lost at most: where a task costs more, it "
            "is scaled back.",
            min=0,
        ),
    ] = None,
    names: Annotated[
        Path | None,
        typer.Option(help=NAMES_HELP, metavar="FILE"),
    ] = None,
    template: Annotated[
        list[str] | None,
        typer.Option(
            help="How a class becomes a prompt, such as 'a photo of a {}, a kind of flower.' "
            "Repeatable: the first trains, the mean of all judges.",
            show_default="a photo of {}",
        ),
    ] = None,
    holdout: Annotated[
        float, typer.Option(help="Share of the images to judge by, where DATA has no test part.")
    ] = 0.2,
    replay: Annotated[
        str | None,
        typer.Option(
            help="How many images the run may keep to learn from again; 'none' stores no image."
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="See `retouch methods`.", show_default="spu", autocompletion=methods_named
        ),
    ] = None,
    tasks: Annotated[int, typer.Option(help="Learn the classes in so many steps.", min=1)] = 1,
    order: Annotated[
        str, typer.Option(help="Of the classes: a seed, or a file with a name a line.")
    ] = "0",
    epochs: Annotated[
        int | None,
        typer.Option(help="How often each image is seen.", min=0, show_default="10, or more"),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="New images a step.", min=2, show_default="128, or fewer")
    ] = None,
    lr: Annotated[
        float | None, typer.Option(help="Learning rate.", show_default="by the model")
    ] = None,
    weight_decay: Annotated[
        float | None, typer.Option(help="AdamW's weight decay.", show_default="by the model")
    ] = None,
    micro_batch: Annotated[
        int | None,
        typer.Option(help="Images held in memory at a time; learns the same, slower.", min=1),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change the method, such as update.rate=0.05. Repeatable."),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(help="Images with captions, for methods that hold on by such; or 'builtin'."),
    ] = None,
    data_root: Root = None,
    cache: Cache = None,
    no_cache: NoCache = False,
    skip_bad: SkipBad = False,
    workers: Annotated[
        int | None, typer.Option(help="Threads that decode; one a core by default.", min=1)
    ] = None,
    seed: Seed = 0,
    device: Device = "auto",
    precision: Precision = "auto",
    compiled: Compile = None,
    shard: Shard = False,
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="Begin with a model that knows nothing.")
    ] = False,
    tensorboard: Annotated[
        Path | None, typer.Option(help="Also write curves for TensorBoard into this folder.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run that --out holds already.")
    ] = False,
    wandb: Annotated[
        str | None,
        typer.Option(help="Also log to this project of Weights & Biases.", metavar="PROJECT"),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show what would change and what it would cost, and stop."),
    ] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Learn a folder of images, and report what was gained and what was lost.

    Where the run was interrupted, the same command goes on with it. A month later, go on from the
    run with new images:

        retouch learn photos --model openai/clip-vit-base-patch16 --control imagenet --out march

        retouch learn more --from march --control imagenet --max-drop 1 --out april

    Exit codes: 0 learned, 1 a mistake that is explained, 3 nothing was kept because all of it would
    have cost more than --max-drop, 130 stopped.
    """
    with user_errors(folder), with_ranks(device) as device, ExitStack() as stack:
        from retouch.clip import load
        from retouch.data.decode import set_workers
        from retouch.data.rename import read_names
        from retouch.distributed import collectives
        from retouch.methods import Settings
        from retouch.train import is_run, teach
        from retouch.train.defaults import choose_defaults
        from retouch.train.hardware import check_shard
        from retouch.train.run_lock import run_lock

        # What is cheap to check comes first: see `cli.checks`.
        sources = {"DATA": data, "--control": control, "--model": model, "--from": goes_on_from}
        check_out(folder, overwrite, {**sources, "--reference": reference})
        if not dry_run:
            stack.enter_context(run_lock(folder))
        if tensorboard:
            check_folder(tensorboard)
        if wandb:
            from retouch.train.wandb_logger import check_installed

            check_installed()
        if model is None and goes_on_from is None:
            raise UserError("which model shall learn? Name one with --model, or a run with --from")
        check_machine(model, device, precision)
        asked = given(epochs=epochs, batch=batch, lr=lr, weight_decay=weight_decay)
        asked |= given(micro_batch=micro_batch) | {"seed": seed}
        Settings.model_validate(asked)
        classes, wanted = read_names(names) if names else {}, read_order(order)
        before = find_finished(goes_on_from, folder, overwrite)
        check_templates(template or [], before)
        chosen = choose_method(method, read_changes(change or []), replay, max_drop, before)
        if shard:
            check_shard(chosen, Settings(shard=True, compile=bool(compiled)))
            compiled = False
        there = find_everything(chosen, data, control, reference, data_root)
        found = there.data.each(lambda images: called(images, classes, template or []))
        check_stream(found, holdout, tasks, wanted)

        talk = err if as_json else out
        show_notes(talk, [each for each in (found.train, found.test, there.control) if each])
        if workers:
            set_workers(workers)
        begun = not overwrite and collectives.broadcast_str(
            lambda: "begun" if is_run(folder) else ""
        )
        run = open_run(before, model, device)
        clip = run.clip if run else load(model or "", device=device, random_weights=random_weights)

        def decoded(images: "Images") -> "Images":
            here = {"no_cache": no_cache or dry_run, "skip_bad": skip_bad}
            return ready(images, clip.preprocess, cache=cache, **here)

        train, test = found.each(decoded).train_and_test(holdout)
        stream, earlier = make_stream(run, train, test, tasks, wanted)
        done = run.results.done if run else 0
        suited = choose_defaults(
            clip,
            chosen,
            {
                **inherited(run),
                **asked,
                **how_to_compute(
                    talk, folder if begun else None, clip, precision, compiled, not no_cache
                ),
                "shard": shard,
            },
            [len(task.train) for task in stream.tasks[done:]],
            len(stream.classes),
            stream.missing_images,
        )
        what, pairs = there.control and decoded(there.control), there.reference
        stores = replay != "none"
        if not begun:
            show_classes(talk, stream, done)
            show_settings(talk, [*suited.notes, *([_parts(clip, chosen)] if shard else [])])
            cost = cost_of(clip, stream, suited, run, what, pairs, stores)
            show_cost(talk, cost, clip)
            check_room(folder, cost)
        if dry_run:
            return
        results = teach(
            clip,
            stream,
            suited.method,
            settings=suited.settings,
            control=what,
            reference=pairs,
            out=folder,
            callback=_watch(suited, stream, quiet, as_json, tensorboard, wandb, folder),
            earlier=earlier,
            overwrite=overwrite,
            store_images=stores,
            command=command_line(),
        )
        if collectives.is_rank0():
            _answer(talk, folder, results, as_json)
        if results.fraction_kept[done:] and not any(results.fraction_kept[done:]):
            raise typer.Exit(NOTHING_KEPT)


def _parts(clip: "Clip", method: "Method") -> str:
    """How much of the model each of the processes holds."""
    from retouch.distributed import collectives, fsdp
    from retouch.report.phrasing import file_size

    model = clip.model
    mine = fsdp.bytes_per_rank(
        model, method.update.shardable_parameters(clip), collectives.world_size()
    )
    whole = file_size(fsdp.bytes_per_rank(model, {}, 1))
    return f"each process holds {file_size(mine)} of {whole} of weights while a task is learned"


def _watch(
    suited: "ChosenDefaults",
    stream: "Stream",
    quiet: bool,
    as_json: bool,
    tensorboard: Path | None,
    wandb: str | None,
    folder: Path,
) -> "Callback":
    from retouch.distributed import collectives
    from retouch.train.callbacks import Callback, CallbackList, progress_callback

    if not collectives.is_rank0():
        return Callback()
    title, epochs = suited.method.name, suited.settings.epochs
    every = [progress_callback(title, len(stream.tasks), epochs, quiet=quiet, to_stderr=as_json)]
    if tensorboard:
        from retouch.train.tensorboard_logger import TensorBoard

        every.append(TensorBoard(tensorboard))
    if wandb:
        from retouch.train.wandb_logger import WandB

        config = {
            "method": suited.method.model_dump(mode="json"),
            "settings": suited.settings.model_dump(mode="json"),
            "data": stream.train.name,
            "classes": len(stream.classes),
            "tasks": len(stream.tasks),
        }
        every.append(WandB(wandb, folder.name, config))
    return CallbackList(*every) if len(every) > 1 else every[0]


def _answer(talk: "Console", folder: Path, results: "Results", as_json: bool) -> None:
    from retouch.report import write_report
    from retouch.report.phrasing import compile_sentence, verdict

    with status("Writing the page"):
        page = write_report(folder, [results])
    if as_json:
        print_json(
            {
                "folder": str(folder),
                "report": str(page),
                "method": results.method,
                "classes": [name for task in results.tasks for name in task.classes],
                "metrics": results.metrics(),
                "fraction_kept": results.fraction_kept,
                "notes": results.notes,
            }
        )
        return
    for line in (*verdict(results), compile_sentence(results), f"More in {page}"):
        if line:
            talk.print(line, highlight=False, markup=False, soft_wrap=True)
