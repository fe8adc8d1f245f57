"""What to train, what to replay, what to keep, how to settle."""

from retouch.methods.method import (
    AfterTask,
    BalancedReplay,
    Method,
    Regularizer,
    Replay,
    TaskUpdate,
    Update,
)
from retouch.methods.recipes import RECIPES, recipe
from retouch.methods.settings import Settings
from retouch.methods.task_context import TaskContext

__all__ = [
    "RECIPES",
    "AfterTask",
    "BalancedReplay",
    "Method",
    "Regularizer",
    "Replay",
    "Settings",
    "TaskContext",
    "TaskUpdate",
    "Update",
    "recipe",
]
