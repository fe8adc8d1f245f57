"""Settings that suit the data, where a user names none. What differs from the paper's is said."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from retouch.clip import Clip
from retouch.methods import BalancedReplay, Method, Settings
from retouch.plural import count

PAPER = Settings()
"""The paper's settings."""
STEPS = 60
"""A task is learned in at least so many steps, however few images it has."""
SMALL_MODEL = 20_000_000
"""Below so many weights a model needs larger steps."""
LR = 2.5e-5
"""Three times the paper's: it learns far more for a point or two (docs/bench.md)."""
SMALL_LR = 1e-3
SMALL_WEIGHT_DECAY = 0.01
REPLAYED_A_CLASS = 4


@dataclass(frozen=True)
class ChosenDefaults:
    """Settings, a replay buffer, and what a user should know of them."""

    settings: Settings
    method: Method
    notes: list[str]


def choose_defaults(
    clip: Clip,
    method: Method,
    asked: dict[str, float | int | str | None],
    images: Sequence[int],
    classes: int,
    learned: int = 0,
) -> ChosenDefaults:
    """Choose what was not asked for.

    `images` are those of each new task, `classes` all that will be known, `learned` the images of
    tasks learned before.
    """
    given = {key: value for key, value in asked.items() if value is not None}
    fewest = min(images)
    batch = int(given.get("batch") or min(PAPER.batch, max(8, ceil(fewest / 4))))
    rounds = ceil(STEPS / ceil(fewest / batch))
    small = clip.size < SMALL_MODEL
    chosen = {
        "batch": batch,
        "epochs": max(PAPER.epochs, rounds),
        "lr": SMALL_LR if small else LR,
        "weight_decay": SMALL_WEIGHT_DECAY if small else PAPER.weight_decay,
    }
    settings = Settings.model_validate({**chosen, **given})
    epochs = count(settings.epochs, "epoch")
    said = [f"batches of {settings.batch}, {epochs}, learning rate {settings.lr:g}"]
    if fewest < 4 * PAPER.batch and not {"batch", "epochs"} & set(given):
        paper = f"the paper has {PAPER.batch} and {PAPER.epochs}"
        said[0] += f" (suited to {count(fewest, 'image')}; {paper})"
    replay = method.replay
    if isinstance(replay, BalancedReplay) and "size" not in replay.model_fields_set:
        total = sum(images) + learned
        kept = min(max(REPLAYED_A_CLASS * classes, round(replay.size * total)), total)
        method = method.with_change({"replay.size": kept})
        said.append(
            f"up to {count(kept, 'image')} {'is' if kept == 1 else 'are'} kept to replay them later"
        )
    return ChosenDefaults(settings, method, said)
