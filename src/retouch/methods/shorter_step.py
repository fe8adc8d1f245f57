"""A shorter step per task: part of what a task changed is taken back."""

from typing import Annotated

from pydantic import Field, PrivateAttr
from torch import Tensor

from retouch.methods.parts import AfterTask
from retouch.methods.task_context import TaskContext
from retouch.methods.task_update import TaskUpdate


class ShorterStep(AfterTask):
    """What happens when a task ends? Its change is scaled by α: start + α·(end − start).

    It is the outer step of Reptile (Nichol et al. 2018) and Lookahead (Zhang et al. 2019), with a
    task as the inner loop. `merging.Interpolate` scales all that was learned since pre-training
    and trains on from the weights before scaling; here the next task starts from the scaled
    weights, so it sees what the scaling cost and, with replay, repairs it.
    """

    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    """1 keeps all that the task changed, 0 nothing."""
    _start: dict[str, Tensor] = PrivateAttr(default_factory=dict)

    def begin(self, context: TaskContext, update: TaskUpdate) -> None:
        self._start = update.snapshot()

    def end(self, context: TaskContext, update: TaskUpdate) -> None:
        update.interpolate(self._start, update.snapshot(), self.alpha)
        self._start = {}
