"""Which method `retouch learn` uses, with the changes that were asked for."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retouch.errors import UserError
from retouch.text.parsing import parse_user_yaml

if TYPE_CHECKING:
    from retouch.cli.learn.config import TrainingOptions
    from retouch.evaluate import Results
    from retouch.methods import Method


@dataclass(frozen=True)
class FinishedRun:
    """A run to continue, without its model."""

    folder: Path
    config: dict[str, Any]
    results: "Results"


def choose_method(
    training: "TrainingOptions", earlier: FinishedRun | None, control: bool
) -> "Method":
    """The method that was asked for, or that of the run to continue.

    Args:
        training: The options of the command.
        earlier: The run to continue.
        control: Whether there is a control set.
    """
    from retouch.methods import DEFAULT_METHOD, WITHOUT_IMAGES, BalancedReplay, recipe
    from retouch.methods.after_task.bounded_drop import BoundedDrop, with_max_drop
    from retouch.train.run_folder.read import method_of

    name, replay = training.method, training.replay
    if earlier and name not in (None, earlier.results.method):
        raise UserError(
            f"--method {name}: {earlier.folder} was learned by {earlier.results.method}, and only "
            "that can continue it"
        )
    default = WITHOUT_IMAGES if replay == "none" else DEFAULT_METHOD
    method = method_of(earlier.config, earlier.folder) if earlier else recipe(name or default)
    if earlier and replay is None and isinstance(method.replay, BalancedReplay):
        # The size of its buffer is chosen again, for all images.
        part = type(method.replay)(**method.replay.model_dump(exclude={"size"}))
        method = method.with_change({"replay": part})
    changes = read_changes(training.change or [])
    _refuse_contradiction(replay, changes)
    method = _with_replay(method.with_change(changes), replay)
    if training.max_drop is not None:
        return with_max_drop(method, training.max_drop)
    if earlier and not control and isinstance(method.after_task, BoundedDrop):
        raise UserError(
            f"{earlier.folder} was learned with --max-drop {method.after_task.max_drop:g}, which "
            "holds for all that is learned after it, too, and there is no control set to check it "
            "with; name one with --control"
        )
    return method


def requested_images(training: "TrainingOptions", method: "Method") -> bool | None:
    """Whether images shall be stored, if the user said so; else it is as in the earlier run.

    Args:
        training: The options of the command.
        method: The method with these options.
    """
    changed = "store_images" in read_changes(training.change or [])
    return method.store_images if changed or training.replay is not None else None


def _refuse_contradiction(replay: str | None, changes: dict[str, Any]) -> None:
    """Refuse a --set that --replay would make void."""
    decided = ("replay.size", "store_images")
    for path in changes if replay is not None else ():
        if path in decided or (replay == "none" and path.partition(".")[0] == "replay"):
            raise UserError(
                f"--replay {replay} and --set {path}={changes[path]} contradict each other; leave "
                "one of them out"
            )


def _with_replay(method: "Method", replay: str | None) -> "Method":
    """The method with the option --replay."""
    if replay is None:
        return method
    if replay == "none":
        return method.with_change({"replay": "none", "store_images": False})
    if not replay.isdecimal() or int(replay) < 1:
        raise UserError(f"--replay {replay}: use a number of images, such as 200, or none")
    if "size" not in type(method.replay).model_fields:
        raise UserError(
            f"--replay {replay}: {method.name} replays no images; leave it out, or let it replay "
            "some with --set replay=BalancedReplay"
        )
    return method.with_change({"replay.size": int(replay), "store_images": True})


def read_changes(pairs: list[str]) -> dict[str, Any]:
    changes = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"--set {pair}: write NAME=VALUE, such as update.rate=0.05")
        is_pattern = value.startswith("*")  # of names; YAML would take it for an alias
        changes[name] = value if is_pattern else parse_user_yaml(value, f"--set {pair}")
    return changes
