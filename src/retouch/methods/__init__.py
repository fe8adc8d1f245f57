"""What to train, what to replay, what to keep, how to settle."""

from retouch.methods.lesson import Lesson
from retouch.methods.method import Balanced, Keeps, Method, Replays, Settles, Trains, Update
from retouch.methods.recipes import RECIPES, recipe
from retouch.methods.settings import Settings

__all__ = [
    "RECIPES",
    "Balanced",
    "Keeps",
    "Lesson",
    "Method",
    "Replays",
    "Settings",
    "Settles",
    "Trains",
    "Update",
    "recipe",
]
