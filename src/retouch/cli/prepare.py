"""From the options of `retouch learn` to what the library needs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retouch.checksummed import parse_yaml
from retouch.errors import UserError
from retouch.plural import count

if TYPE_CHECKING:
    from rich.console import Console

    from retouch.cli.checks import Finished
    from retouch.clip import Clip
    from retouch.data import Images, Pairs, Stream
    from retouch.methods import Method
    from retouch.train import OpenRun
    from retouch.train.cost import Cost
    from retouch.train.defaults import ChosenDefaults
    from retouch.train.extend_stream import EarlierRun


def open_run(found: "Finished | None", model: str | None, device: str) -> "OpenRun | None":
    """The run to go on from, with its model."""
    from retouch.train import open_run

    return open_run(found.folder, model=model, device=device) if found else None


def choose_method(
    name: str | None,
    changes: dict[str, Any],
    replay: str | None,
    max_drop: float | None,
    run: "Finished | None",
) -> "Method":
    """The method that was asked for, or that of the run to go on from."""
    from retouch.methods import BalancedReplay, Replay, recipe
    from retouch.methods.merging import with_max_drop
    from retouch.train.run_folder import method_of

    if run and name not in (None, run.results.method):
        raise UserError(
            f"--method {name}: {run.folder} was learned by {run.results.method}, and only that can "
            "go on from it"
        )
    chosen = method_of(run.config) if run else recipe(name or "spu")
    if run and replay is None and isinstance(chosen.replay, BalancedReplay):
        own = chosen.replay.model_dump(exclude={"size"})  # which is to be suited anew
        chosen = chosen.with_change({"replay": type(chosen.replay)(**own)})
    if replay == "none":
        chosen = chosen.with_change({"replay": Replay()})
    elif replay is not None:
        if not replay.isdigit() or int(replay) < 1:
            raise UserError(f"--replay {replay}: say how many images, such as 200, or none")
        chosen = chosen.with_change({"replay.size": int(replay)})
    chosen = chosen.with_change(changes)
    return chosen if max_drop is None else with_max_drop(chosen, max_drop)


def inherited(run: "OpenRun | None") -> dict[str, Any]:
    """How the earlier run was trained, but for what suits the number of its images."""
    kept = ("lr", "weight_decay")
    return {key: run.config["settings"][key] for key in kept} if run else {}


def how_to_compute(
    talk: "Console",
    begun: Path | None,
    clip: "Clip",
    precision: str,
    compiled: bool | None,
    once: bool,
) -> dict[str, Any]:
    """As was asked, as a run that goes on began, or as suits the machine; said in a line."""
    from retouch.data.decode import workers
    from retouch.train.hardware import hardware
    from retouch.train.run_folder import read_config

    if begun:
        settings = read_config(begun)["settings"]
        precision = settings["precision"] if precision == "auto" else precision
        compiled = settings["compile"] if compiled is None else compiled
    found = hardware(clip.device, clip.size, precision, compiled)
    often = "once" if once else "every time"
    decodes = f"images are decoded {often}, by {count(workers(), 'thread')}"
    talk.print(f"{found}; {decodes}.", highlight=False, soft_wrap=True)
    return {"precision": found.precision, "compile": found.compile}


def given(**options: Any) -> dict[str, Any]:
    return {key: value for key, value in options.items() if value is not None}


def called(images: "Images", names: Mapping[str, str], templates: Sequence[str]) -> "Images":
    """The images with the names and the templates that were asked for, if any.

    The first template trains; judging averages over all of them.
    """
    from retouch.data.rename import rename

    images = rename(images, names) if names else images
    if not templates:
        return images
    return replace(images, prompt=templates[0], templates=tuple(templates))


def make_stream(
    run: "OpenRun | None", train: "Images", test: "Images", tasks: int, order: int | list[str]
) -> "tuple[Stream, EarlierRun | None]":
    from retouch.data import Stream
    from retouch.train.extend_stream import extend_stream
    from retouch.train.replay_store import has_stored_images, read_stored_images

    if run is None:
        return Stream.split(train, test, tasks=tasks, order=order), None
    kept = read_stored_images(run.folder) if has_stored_images(run.folder) else None
    return extend_stream(run, kept, train, test, tasks=tasks, order=order)


def cost_of(
    clip: "Clip",
    stream: "Stream",
    suited: "ChosenDefaults",
    run: "OpenRun | None",
    control: "Images | None",
    reference: "Pairs | None",
    stores: bool,
) -> "Cost":
    from retouch.train.cost import estimate

    if run:
        run.load_task(None)
    try:
        return estimate(
            clip,
            stream,
            suited.method,
            suited.settings,
            done=run.results.done if run else 0,
            control=control,
            reference=reference,
            stores=stores,
        )
    finally:
        if run:
            run.load_task(0)


def read_changes(pairs: list[str]) -> dict[str, Any]:
    changes = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"--set {pair}: write NAME=VALUE, such as update.rate=0.05")
        changes[name] = parse_yaml(value, f"--set {pair}")
    return changes


def read_order(order: str) -> int | list[str]:
    if order.isdigit():
        return int(order)
    if not Path(order).is_file():
        raise UserError(f"--order {order}: neither a number nor a file with a class name a line")
    from retouch.data.text_files import read_lines

    return read_lines(Path(order))
