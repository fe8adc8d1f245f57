"""Stop training when a loss, weights or features become infinite or NaN."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from retouch.distributed import collectives
from retouch.errors import Diverged, NotFinite
from retouch.methods import Method, Settings, TaskUpdate
from retouch.sparse.finite import describe_not_finite


def finite_loss(rank_loss: Callable[[], float], settings: Settings, task: int, step: int) -> float:
    """The loss of a step, summed over all ranks; refused where it is not finite."""
    loss = collectives.all_reduce_scalar(rank_loss())
    if not math.isfinite(loss):
        raise Diverged(
            f"the loss became {loss} in task {task + 1}, step {step + 1}; {_advice(settings)}"
        )
    return loss


def check_finite(update: TaskUpdate, method: Method | None = None) -> None:
    """Refuse trained weights, and a method's state, with infinite or NaN values."""
    weights = {name: update.tensors[name] for name in update.selection}
    if bad := describe_not_finite(weights, "weights"):
        raise NotFinite(bad)
    if method:
        what = f"values in the state of {method.name}"
        if bad := describe_not_finite(method.state(), what):
            raise NotFinite(bad)


@contextmanager
def diverged_if_not_finite(task: int, settings: Settings) -> Iterator[None]:
    """A task that ends with values that are not finite has failed."""
    try:
        yield
    except NotFinite as why:
        raise Diverged(f"task {task + 1} left {why}; {_advice(settings)}") from None


def _advice(settings: Settings) -> str:
    return (
        "this task is lost, but a run's folder still holds the tasks before it. Start again in "
        f"another folder with a learning rate below {settings.lr:g}"
    )
