"""The settings of the built-in model and pictures: one file for the demo and the bench."""

from importlib.resources import files
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict

from retouch.methods import Settings, recipe


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


class DemoSettings(BaseModel):
    """How the built-in model learns the built-in signs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tasks: int
    pictures: PictureCounts
    training: dict[str, Any]
    """Fields of `Settings`, for all methods; each has a learning rate of its own."""
    replay: int
    """Images in the replay buffer."""
    quick: QuickSettings

    def settings(self, method: str, seed: int = 0) -> Settings:
        """The training settings of a method."""
        return Settings(**self.training, lr=recipe(method).small_model_lr, seed=seed)

    def reduced(self) -> "DemoSettings":
        """The same with less data and training, for a quick look."""
        training = {**self.training, "epochs": self.quick.epochs}
        changes = {"pictures": self.quick.pictures, "replay": self.quick.replay}
        return self.model_copy(update={**changes, "training": training})


def demo_settings() -> DemoSettings:
    return DemoSettings(**yaml.safe_load((files("retouch.builtin") / "demo.yaml").read_text()))
