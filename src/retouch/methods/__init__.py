"""Methods: which parameters are updated, what is replayed, how earlier knowledge is preserved."""

from retouch.methods.balanced_replay import BalancedReplay
from retouch.methods.method import Method
from retouch.methods.parts import AfterTask, Regularizer, Replay, Update
from retouch.methods.recipes import DEFAULT_METHOD, RECIPES
from retouch.methods.registry import available_methods, recipe, register
from retouch.methods.settings import Settings
from retouch.methods.task_context import TaskContext
from retouch.methods.task_update import TaskUpdate

__all__ = [
    "DEFAULT_METHOD",
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
    "available_methods",
    "recipe",
    "register",
]
