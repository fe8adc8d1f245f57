"""Learning-rate schedules over the steps of a task."""

import math
from typing import Annotated

from pydantic import Field

from retouch.methods.parts import Part


class Schedule(Part):
    """How does the learning rate change over a task? It is constant."""

    def factor(self, step: int, steps: int, epochs: int, tasks: int = 1) -> float:
        """What to multiply the learning rate by in a step.

        Args:
            step: The step of the task, from 0.
            steps: How many steps the task has.
            epochs: How many epochs the task has.
            tasks: How many tasks the run has.
        """
        return 1.0


class Cosine(Schedule):
    """Linear warm-up, then half a cosine, per step."""

    warmup: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of the task's steps in which the learning rate rises."""

    def factor(self, step: int, steps: int, epochs: int, tasks: int = 1) -> float:
        warm = math.ceil(self.warmup * steps)
        if step < warm:
            return (step + 1) / warm
        return (1 + math.cos(math.pi * (step - warm) / (steps - warm))) / 2
