"""The settings of the built-in model and pictures: one file for the demo and the bench."""

from importlib.resources import files
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict

from retouch.methods import Method, Settings, recipe
from retouch.methods.after_task.text_first import TextFirst


class PictureCounts(BaseModel):
    """Pictures of each class."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    train: int
    test: int
    control: int


class QuickSettings(BaseModel):
    """What is smaller in a quick demo."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pictures: PictureCounts
    epochs: int
    replay: int
    word_steps: int


class DemoSettings(BaseModel):
    """How the built-in model learns the built-in signs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tasks: int
    pictures: PictureCounts
    training: dict[str, Any]
    """Fields of `Settings`, for all methods; each has a learning rate of its own."""
    replay: int
    """Images in the replay buffer."""
    word_steps: int | None = None
    """Steps of the text tower alone, where a method has any; None for the method's own."""
    quick: QuickSettings

    def settings(self, method: str, seed: int = 0) -> Settings:
        """The training settings of a method."""
        return Settings(**self.training, lr=recipe(method).small_model_lr, seed=seed)

    def method(self, name: str) -> Method:
        """A recipe as the demo runs it."""
        method, changes = recipe(name), {}
        if "size" in type(method.replay).model_fields:
            changes["replay.size"] = self.replay
        if self.word_steps and isinstance(method.after_task, TextFirst):
            changes["after_task.steps"] = self.word_steps
        return method.with_change(changes)

    def reduced(self) -> "DemoSettings":
        """The same with less data and training, for a quick look."""
        training = {**self.training, "epochs": self.quick.epochs}
        names = ("pictures", "replay", "word_steps")
        changes = {name: getattr(self.quick, name) for name in names}
        return self.model_copy(update={**changes, "training": training})


def demo_settings() -> DemoSettings:
    return DemoSettings(**yaml.safe_load((files("retouch.builtin") / "demo.yaml").read_text()))
