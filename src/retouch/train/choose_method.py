"""Which method a run has: as asked for, with changes; or that of the run that is continued."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from retouch.errors import UserError
from retouch.evaluate.results import Results
from retouch.methods import DEFAULT_METHOD, BalancedReplay, Method, recipe
from retouch.methods.after_task.bounded_drop import BoundedDrop, with_max_drop
from retouch.train.run_folder.read import method_of

Replay = int | Literal["none"]


@dataclass(frozen=True)
class FinishedRun:
    """A run to continue, without its model."""

    folder: Path
    config: dict[str, Any]
    results: Results


def choose_method(
    method: str | Method | None,
    change: Mapping[str, Any],
    earlier: FinishedRun | None = None,
    *,
    replay: Replay | None = None,
    max_drop: float | None = None,
    control: bool = False,
) -> Method:
    """The method that was asked for, or that of the run to continue.

    Args:
        method: Its name, or itself; None for the default.
        change: Changes of its settings.
        earlier: The run to continue.
        replay: How many images to replay; "none" also stores none.
        max_drop: How many points of control accuracy all tasks together may cost.
        control: Whether there is a control set.
    """
    if isinstance(method, Method):
        chosen = method
    elif earlier:
        _refuse_other(method, earlier)
        chosen = method_of(earlier.config, earlier.folder)
        if replay is None and isinstance(chosen.replay, BalancedReplay):
            # The size of its buffer is chosen again, for all images.
            part = type(chosen.replay)(**chosen.replay.model_dump(exclude={"size"}))
            chosen = chosen.with_change({"replay": part})
    else:
        chosen = recipe(method or DEFAULT_METHOD)
    _refuse_contradiction(replay, change)
    chosen = _with_replay(chosen.with_change(dict(change)), replay)
    if max_drop is not None:
        return with_max_drop(chosen, max_drop)
    if earlier and not control and isinstance(chosen.after_task, BoundedDrop):
        raise UserError(
            f"{earlier.folder} was learned with a bound of {chosen.after_task.max_drop:g} points "
            "on what may be lost, which holds for all that is learned after it, too, and there is "
            "no control set to check it with; name one",
            argument="control=…",
        )
    return chosen


def _refuse_other(name: str | None, earlier: FinishedRun) -> None:
    if name not in (None, earlier.results.method):
        raise UserError(
            f"{earlier.folder} was learned by {earlier.results.method}, and only that can continue "
            f"it, not {name}",
            argument=f"method={earlier.results.method}",
        )


def _refuse_contradiction(replay: Replay | None, changes: Mapping[str, Any]) -> None:
    """Refuse a change of a setting that `replay` decides."""
    decided = ("replay.size", "store_images")
    for path in changes if replay is not None else ():
        if path in decided or (replay == "none" and path.partition(".")[0] == "replay"):
            raise UserError(
                f"replay {replay} and {path}={changes[path]} contradict each other; leave one of "
                "them out"
            )


def _with_replay(method: Method, replay: Replay | None) -> Method:
    if replay is None:
        return method
    if replay == "none":
        return method.with_change({"replay": "none", "store_images": False})
    if replay < 1:
        raise UserError(f"replay={replay}: give a number of images, such as 200, or none")
    if "size" not in type(method.replay).model_fields:
        raise UserError(
            f"{method.name} replays no images, and replay={replay} asks for some; leave it out, or "
            "change the method's setting replay to BalancedReplay"
        )
    return method.with_change({"replay.size": replay, "store_images": True})
