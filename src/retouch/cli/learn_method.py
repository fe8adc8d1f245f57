"""Which method `retouch learn` uses, with the changes that were asked for."""

from typing import TYPE_CHECKING, Any

from retouch.errors import UserError
from retouch.parsing import parse_user_yaml

if TYPE_CHECKING:
    from retouch.cli.learn_checks import FinishedRun
    from retouch.cli.learn_config import TrainingOptions
    from retouch.methods import Method


def choose_method(
    training: "TrainingOptions", earlier: "FinishedRun | None", control: bool
) -> "Method":
    """The method that was asked for, or that of the run to continue.

    Args:
        training: The options of the command.
        earlier: The run to continue.
        control: Whether there is a control set.
    """
    from retouch.methods import DEFAULT_METHOD, WITHOUT_IMAGES, BalancedReplay, Replay, recipe
    from retouch.methods.bounded_drop import BoundedDrop, with_max_drop
    from retouch.train.run_folder import method_of

    name, replay = training.method, training.replay
    if earlier and name not in (None, earlier.results.method):
        raise UserError(
            f"--method {name}: {earlier.folder} was learned by {earlier.results.method}, and only "
            "that can continue it"
        )
    default = WITHOUT_IMAGES if replay == "none" else DEFAULT_METHOD
    method = method_of(earlier.config) if earlier else recipe(name or default)
    if earlier and replay is None and isinstance(method.replay, BalancedReplay):
        # The size of its buffer is chosen again, for all images.
        part = type(method.replay)(**method.replay.model_dump(exclude={"size"}))
        method = method.with_change({"replay": part})
    if replay == "none":
        method = method.with_change({"replay": Replay()})
    elif replay is not None:
        if not replay.isdigit() or int(replay) < 1:
            raise UserError(f"--replay {replay}: use a number of images, such as 200, or none")
        method = method.with_change({"replay.size": int(replay)})
    method = method.with_change(read_changes(training.change or []))
    if training.max_drop is not None:
        return with_max_drop(method, training.max_drop)
    if earlier and not control and isinstance(method.after_task, BoundedDrop):
        raise UserError(
            f"{earlier.folder} was learned with --max-drop {method.after_task.max_drop:g}, which "
            "holds for all that is learned after it, too, and there is no control set to check it "
            "with; name one with --control"
        )
    return method


def read_changes(pairs: list[str]) -> dict[str, Any]:
    changes = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"--set {pair}: write NAME=VALUE, such as update.rate=0.05")
        changes[name] = parse_user_yaml(value, f"--set {pair}")
    return changes
