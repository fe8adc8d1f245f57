"""`retouch learn`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from retouch.cli.options import Bf16, Cache, Device, Model, NoCache, Quiet, Root, Seed, SkipBad
from retouch.cli.say import out, plainly, progress
from retouch.errors import UserError

if TYPE_CHECKING:
    from retouch.data import Images, Pairs, Splits


def learn(
    data: Annotated[
        str,
        typer.Argument(
            help="A folder of images per class, a table, shards, a benchmark's name or 'builtin'; "
            "see `retouch datasets`."
        ),
    ],
    folder: Annotated[Path, typer.Option("--out", help="Where the run is kept.")],
    model: Model,
    method: Annotated[str, typer.Option(help="See `retouch methods`.")] = "spu",
    control: Annotated[
        str | None,
        typer.Option(help="Images of what the model must still know: as DATA."),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(help="Images with captions, for methods that hold on by such; or 'builtin'."),
    ] = None,
    tasks: Annotated[int, typer.Option(help="Learn the classes in so many steps.", min=1)] = 1,
    order: Annotated[
        str, typer.Option(help="Of the classes: a seed, or a file with a name a line.")
    ] = "0",
    holdout: Annotated[
        float, typer.Option(help="Share of the images to judge by, where DATA has no test part.")
    ] = 0.2,
    epochs: Annotated[int, typer.Option(help="How often each image is seen.", min=0)] = 10,
    batch: Annotated[int, typer.Option(help="New images a step.", min=2)] = 128,
    lr: Annotated[float, typer.Option(help="Learning rate.")] = 7.5e-6,
    weight_decay: Annotated[float, typer.Option(help="AdamW's weight decay.")] = 0.2,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change the method, such as trains.rate=0.05. Repeatable."),
    ] = None,
    data_root: Root = None,
    cache: Cache = None,
    no_cache: NoCache = False,
    skip_bad: SkipBad = False,
    workers: Annotated[
        int | None, typer.Option(help="Threads that decode; one a core by default.", min=1)
    ] = None,
    seed: Seed = 0,
    device: Device = "cpu",
    bf16: Bf16 = False,
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="Begin with a model that knows nothing.")
    ] = False,
    tensorboard: Annotated[
        Path | None, typer.Option(help="Also write curves for TensorBoard into this folder.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show which weights would move, and stop.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Learn a folder of images, and report what was gained and what was lost.

    Where the run was interrupted, the same command goes on with it.
    """
    with plainly(folder):
        from retouch.clip import load
        from retouch.data import Stream
        from retouch.data.cache import cached, checked
        from retouch.data.decode import set_workers
        from retouch.learn import preview, teach
        from retouch.learn.watch import Several, watch
        from retouch.methods import Settings, recipe
        from retouch.report import comparison, write_report

        chosen = recipe(method, _changes(change or []))
        settings = Settings(
            epochs=epochs,
            batch=batch,
            lr=lr,
            weight_decay=weight_decay,
            seed=seed,
            precision="bf16" if bf16 else "fp32",
        )
        if workers:
            set_workers(workers)
        found = _images(data, data_root)
        world = "builtin:world" if control == "builtin" else control
        judged = world and _images(world, data_root)
        clip = load(model, device=device, random_weights=random_weights)

        def ready(images: "Images") -> "Images":
            if dry_run or no_cache:
                return checked(images, clip.pixels, progress) if skip_bad else images
            return cached(images, clip.pixels, cache, skip_bad=skip_bad, progress=progress)

        train, test = found.each(ready).to_learn(holdout)
        stream = Stream.split(train, test, tasks=tasks, order=_order(order))
        if dry_run:
            out.print("What may move while the first task is learned:")
            pairs = _pairs(reference)
            table = preview(clip, stream, chosen, settings=settings, reference=pairs)
            out.print(str(table), highlight=False, soft_wrap=True)
            return
        watching = watch(method, len(stream.tasks), epochs, quiet=quiet)
        if tensorboard:
            from retouch.learn.tensorboard import TensorBoard

            watching = Several(watching, TensorBoard(tensorboard))
        results = teach(
            clip,
            stream,
            chosen,
            settings=settings,
            control=ready(judged.to_judge()) if judged else None,
            reference=_pairs(reference),
            out=folder,
            watch=watching,
        )
        out.print(comparison([results]))
        out.print(f"More in {write_report(folder, [results])}", highlight=False, soft_wrap=True)


def _changes(pairs: list[str]) -> dict[str, Any]:
    changes = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"--set {pair}: write NAME=VALUE, such as trains.rate=0.05")
        changes[name] = yaml.safe_load(value)
    return changes


def _order(order: str) -> int | list[str]:
    if order.isdigit():
        return int(order)
    if not Path(order).is_file():
        raise UserError(f"--order {order}: neither a number nor a file with a class name a line")
    from retouch.data.sources.webdataset import lines

    return lines(Path(order))


def _pairs(reference: str | None) -> "Pairs | None":
    from retouch.data import read_pairs

    if reference == "builtin":
        from retouch.builtin.images import world_pairs

        return world_pairs(512)
    return None if reference is None else read_pairs(reference)


def _images(data: str, root: Path | None) -> "Splits":
    from retouch.data import Splits, read_data

    if data == "builtin":
        from retouch.builtin import sign_images

        return Splits(sign_images("train", 40), sign_images("test", 16))
    if data == "builtin:world":
        from retouch.builtin import control_images

        return Splits(test=control_images(8))
    return read_data(data, root)
