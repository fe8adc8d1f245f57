"""From the options of `retouch learn` to what the library needs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retouch.errors import UserError
from retouch.plural import count
from retouch.sealed import parse_yaml

if TYPE_CHECKING:
    from rich.console import Console

    from retouch.cli.checks import Finished
    from retouch.clip import Clip
    from retouch.data import Images, Pairs, Stream
    from retouch.learn import Reopened
    from retouch.learn.cost import Cost
    from retouch.learn.onward import Earlier
    from retouch.learn.suit import Suited
    from retouch.methods import Method


def open_run(found: "Finished | None", model: str | None, device: str) -> "Reopened | None":
    """The run to go on from, with its model."""
    from retouch.learn import reopen

    return reopen(found.folder, model=model, device=device) if found else None


def choose_method(
    name: str | None,
    changes: dict[str, Any],
    replay: str | None,
    max_drop: float | None,
    run: "Finished | None",
) -> "Method":
    """The method that was asked for, or that of the run to go on from."""
    from retouch.learn.reopen import method_of
    from retouch.methods import Balanced, Replays, recipe
    from retouch.methods.settling import bounded

    if run and name not in (None, run.results.method):
        raise UserError(
            f"--method {name}: {run.folder} was learned by {run.results.method}, and only that can "
            "go on from it"
        )
    chosen = method_of(run.config) if run else recipe(name or "spu")
    if run and replay is None and isinstance(chosen.replays, Balanced):
        own = chosen.replays.model_dump(exclude={"size"})  # which is to be suited anew
        chosen = chosen.change({"replays": type(chosen.replays)(**own)})
    if replay == "none":
        chosen = chosen.change({"replays": Replays()})
    elif replay is not None:
        if not replay.isdigit() or int(replay) < 1:
            raise UserError(f"--replay {replay}: say how many images, such as 200, or none")
        chosen = chosen.change({"replays.size": int(replay)})
    chosen = chosen.change(changes)
    return chosen if max_drop is None else bounded(chosen, max_drop)


def inherited(run: "Reopened | None") -> dict[str, Any]:
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
    from retouch.learn.hardware import hardware
    from retouch.learn.reopen import read_config

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
    run: "Reopened | None", train: "Images", test: "Images", tasks: int, order: int | list[str]
) -> "tuple[Stream, Earlier | None]":
    from retouch.data import Stream
    from retouch.learn.kept import is_kept, read_kept
    from retouch.learn.onward import go_on

    if run is None:
        return Stream.split(train, test, tasks=tasks, order=order), None
    kept = read_kept(run.folder) if is_kept(run.folder) else None
    return go_on(run, kept, train, test, tasks=tasks, order=order)


def cost_of(
    clip: "Clip",
    stream: "Stream",
    suited: "Suited",
    run: "Reopened | None",
    control: "Images | None",
    reference: "Pairs | None",
    stores: bool,
) -> "Cost":
    from retouch.learn.cost import estimate

    if run:
        run.go_to(None)
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
            run.go_to(0)


def read_changes(pairs: list[str]) -> dict[str, Any]:
    changes = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"--set {pair}: write NAME=VALUE, such as trains.rate=0.05")
        changes[name] = parse_yaml(value, f"--set {pair}")
    return changes


def read_order(order: str) -> int | list[str]:
    if order.isdigit():
        return int(order)
    if not Path(order).is_file():
        raise UserError(f"--order {order}: neither a number nor a file with a class name a line")
    from retouch.data.text import read_lines

    return read_lines(Path(order))
