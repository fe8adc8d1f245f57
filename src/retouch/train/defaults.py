"""Defaults chosen by the model and the data, where the user sets nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from retouch.clip import Clip
from retouch.methods import BalancedReplay, Method, Settings
from retouch.text.plural import count

MIN_STEPS = 60
"""Steps per task, at least, however few images it has."""
SMALL_MODEL = 20_000_000
"""A model with fewer weights needs a larger learning rate."""
SMALL_MODEL_WEIGHT_DECAY = 0.01
REPLAY_PER_CLASS = 4
"""Images per class in the replay buffer, at least."""
PAPER = Settings()
"""The paper's settings."""


def default_settings(clip: Clip, method: Method) -> Settings:
    """The paper's settings, with a learning rate and weight decay that suit method and model."""
    if clip.size < SMALL_MODEL:
        return Settings(lr=method.small_model_lr, weight_decay=SMALL_MODEL_WEIGHT_DECAY)
    return Settings(lr=method.lr)


@dataclass(frozen=True)
class ChosenDefaults:
    """Settings, the method with its replay buffer, and lines for the user about both."""

    settings: Settings
    method: Method
    notes: list[str]


def choose_defaults(
    clip: Clip,
    method: Method,
    requested: dict[str, float | int | str | None],
    images: Sequence[int],
    classes: int,
    learned: int = 0,
) -> ChosenDefaults:
    """Choose the settings that were not requested, and the size of the replay buffer.

    Args:
        clip: The model.
        method: The method; a replay size that was set is left alone.
        requested: Settings by name. They are used as they are; None means not requested.
        images: The number of training images of each new task.
        classes: How many classes will be known in the end.
        learned: The number of images of tasks learned before.
    """
    given = {key: value for key, value in requested.items() if value is not None}
    fewest = min(images)
    batch, epochs = batch_and_epochs(fewest, given.get("batch"))
    defaults = {**default_settings(clip, method).model_dump(), "batch": batch, "epochs": epochs}
    settings = Settings.model_validate({**defaults, **given})
    notes = []
    if not method.trains_nothing:
        chosen = not {"batch", "epochs"} & set(given)
        notes.append(_training_note(settings, fewest, chosen))
    replay = method.replay
    if isinstance(replay, BalancedReplay) and "size" not in replay.model_fields_set:
        total = sum(images) + learned
        size = buffer_size(replay.size, classes, total)
        method = method.with_change({"replay.size": size})
        verb = "is" if size == 1 else "are"
        notes.append(f"up to {count(size, 'image')} {verb} kept to replay them later")
    return ChosenDefaults(settings, method, notes)


def batch_and_epochs(images: int, batch: float | str | None = None) -> tuple[int, int]:
    """The batch size, unless it is given, and the epochs that suit a task of so many images.

    Args:
        images: How many training images the task has.
        batch: The batch size that was requested.
    """
    batch = int(batch or min(PAPER.batch, max(8, ceil(images / 4))))
    return batch, max(PAPER.epochs, ceil(MIN_STEPS / ceil(images / batch)))


def buffer_size(share: float, classes: int, images: int) -> int:
    """How many images a replay buffer holds: some of each class, even if the share is fewer.

    Args:
        share: The share of all images.
        classes: How many classes will be known in the end.
        images: How many images there are of them.
    """
    return min(max(REPLAY_PER_CLASS * classes, round(share * images)), images)


def _training_note(settings: Settings, fewest: int, chosen: bool) -> str:
    epochs = count(settings.epochs, "epoch")
    note = f"batches of {settings.batch}, {epochs}, learning rate {settings.lr:g}"
    if chosen and fewest < 4 * PAPER.batch:
        reason = (
            f"suited to {count(fewest, 'image')}; the paper has {PAPER.batch} and {PAPER.epochs}"
        )
        return f"{note} ({reason})"
    return note
