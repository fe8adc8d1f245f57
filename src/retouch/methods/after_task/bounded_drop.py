"""A bound on how much control accuracy the tasks may cost in total. Any method can be bounded."""

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, PrivateAttr, SerializeAsAny
from torch import Tensor

from retouch.clip import Clip
from retouch.data.pairs import Pairs
from retouch.methods.method import Method
from retouch.methods.part_classes import part_name
from retouch.methods.parts import AfterTask
from retouch.methods.settings import Settings
from retouch.methods.task_context import TaskContext
from retouch.methods.task_update import TaskUpdate
from retouch.sparse.largest_fraction import largest_fraction

log = logging.getLogger("retouch")


class BoundedDrop(AfterTask):
    """What happens when a task ends? If control accuracy fell too far, the change is scaled back.

    The change is scaled by a fraction between 0 and 1 that keeps the drop since before the first
    task within `max_drop`. Bisection finds it: each fraction that is tried is evaluated, and the
    largest one within the bound is used. The drop is not monotonic in the fraction, so a larger one
    may be within the bound too. If none is, the task leaves the weights as they were before it.

    The change is that since before the task. A method that merges weights trains on from others
    than the merged ones: there it is the change since the pre-trained weights, in the entries that
    the task selected. For WiSE-FT the fraction scales α, which is never above the method's own. So
    a task can also make up for a bound that was crossed before it. What the method keeps to train
    on from is not scaled back.
    """

    needs_control: ClassVar[bool] = True

    max_drop: Annotated[float, Field(ge=0)] = 1.0
    """Points of control accuracy that may be lost in total, since before the first task."""
    tries: Annotated[int, Field(gt=0)] = 6
    """Evaluations of the control set to find the fraction."""
    after: SerializeAsAny[AfterTask] = AfterTask()
    """What the method does at the end of a task, before its change is scaled back."""
    _start: dict[str, Tensor] = PrivateAttr(default_factory=dict)
    _fraction: float = PrivateAttr(default=1.0)

    @property
    def fraction_kept(self) -> float:
        return self._fraction

    @property
    def keeps_trained_weights(self) -> bool:
        return self.after.keeps_trained_weights

    def start(self, clip: Clip, settings: Settings, reference: Pairs | None) -> None:
        self.after.start(clip, settings, reference)

    def trained_parameters(self, clip: Clip) -> Collection[str]:
        return self.after.trained_parameters(clip)

    def prepared(self, context: TaskContext) -> AbstractContextManager[None]:
        return self.after.prepared(context)

    def extra_prompts(self, known: int) -> int:
        return self.after.extra_prompts(known)

    def begin(self, context: TaskContext, update: TaskUpdate) -> None:
        assert context.control_drop is not None
        self._start = update.snapshot()
        self.after.begin(context, update)

    @property
    def is_learned(self) -> bool:
        return self.after.is_learned

    def after_step(
        self, context: TaskContext, update: TaskUpdate, step: int, loss: Callable[[], float]
    ) -> None:
        self.after.after_step(context, update, step, loss)

    def state(self) -> dict[str, Tensor]:
        return self.after.state()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.after.restore(state)

    def end(self, context: TaskContext, update: TaskUpdate) -> None:
        self.after.end(context, update)  # may train, as SLCA's alignment does
        self._scale_back(context, update)

    @torch.no_grad()
    def _scale_back(self, context: TaskContext, update: TaskUpdate) -> None:
        assert context.control_drop is not None
        self._fraction = 1.0
        full_drop = context.control_drop()
        if full_drop <= self.max_drop:
            return
        full_accuracy, origin = context.accuracy(), self.after.origin(update)
        move_to = partial(update.interpolate, self._start | origin, update.snapshot())
        self._fraction, drop = largest_fraction(
            context.control_drop, move_to, self.max_drop, self.tries
        )
        if self._fraction:
            move_to(self._fraction)
        else:
            update.restore(self._start)
            drop = context.control_drop()
        kept = _what_was_kept(context.task.number + 1, self._fraction, self.keeps_trained_weights)
        reason = _why(self._fraction, self.max_drop, full_drop, drop)
        log.warning(f"{kept}: {reason}{_cost(full_accuracy, context.accuracy())}")


def with_max_drop(method: Method, max_drop: float) -> Method:
    """The same method, which may cost at most `max_drop` points of control accuracy."""
    if not isinstance(method.after_task, BoundedDrop):
        method = method.with_change({"after_task": BoundedDrop(after=method.after_task)})
    return method.with_change({"after_task.max_drop": max_drop})


def unbounded(stored: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the method does at the end of a task, without a bound on it.

    Args:
        stored: A part as `method_config` writes it.
    """
    inner = stored.get("after")
    if stored["class"] != part_name(BoundedDrop) or not isinstance(inner, Mapping):
        return stored
    return unbounded(inner) if "class" in inner else stored


def _what_was_kept(task: int, fraction: float, merged: bool) -> str:
    if not fraction:
        return f"nothing of task {task} was kept"
    if merged:
        return (
            f"{100 * fraction:.0f} % of what was learned up to task {task} was kept, in the "
            "weights that this task could change"
        )
    return f"{100 * fraction:.0f} % of what task {task} changed was kept"


def _why(fraction: float, limit: float, full_drop: float, drop: float) -> str:
    if drop > limit:
        return (
            f"of what the model could do before, {drop:.1f} points were lost before this task, "
            f"more than the {limit:g} allowed in total. Allow more, or continue from a run that "
            "lost less"
        )
    outcome = (
        f"so it lost {drop:.1f}" if fraction else "no shorter step that was tried stays within that"
    )
    return (
        f"all of it would have cost {full_drop:.1f} points of what the model could do before, more "
        f"than the {limit:g} allowed; {outcome}"
    )


def _cost(full_accuracy: float | None, accuracy: float | None) -> str:
    """What it means for the classes so far, if they are evaluated and it makes a difference."""
    if full_accuracy is None or accuracy is None:
        return ""
    now, instead = f"{accuracy:.1f} %", f"{full_accuracy:.1f} %"
    if now == instead:
        return ""
    return f". It recognizes {now} of the classes so far instead of {instead}"
