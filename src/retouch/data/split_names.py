"""What the splits of a data set are called, and what each is used for.

People write train, Training, val, valid, validation, test or Testing. This decides once, for
folders, tables, shards and `datasets`, which split is for training and which for evaluation.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from retouch.errors import UserError

Role = Literal["train", "val", "test"]

_ROLES: dict[str, Role] = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}
KNOWN_NAMES = ", ".join(_ROLES)


def role_of(name: str) -> Role | None:
    """What a split with this name is for, ignoring case; None if it is not the name of a split."""
    return _ROLES.get(name.strip().lower())


@dataclass(frozen=True)
class SplitAssignment:
    """Which split is used for training, which for testing, and which is not used."""

    train: str | None
    test: str | None
    unused: str | None

    @property
    def is_standard(self) -> bool:
        """Whether there is nothing to explain: one split is called test, and the other train."""
        names = {self.train, self.test} <= {"train", "test", None}
        return names and self.test is not None and self.unused is None

    def note(self, source: str, suffix: str = "") -> str:
        """A sentence for the user; `suffix` is a slash if the splits are folders."""
        if self.train is None:
            note = f"{self.test}{suffix} is for testing, and there is no training split"
        elif self.test is None:
            note = f"{self.train}{suffix} is for training, and there is no test split"
        else:
            note = f"{self.train}{suffix} is for training, {self.test}{suffix} for testing"
        if self.unused is not None:
            note += f"; {self.unused}{suffix} is not used, because there is {self.test}{suffix}"
        return f"{source}: {note}"


def assign_splits(source: str, names: Iterable[str]) -> SplitAssignment:
    """The test split is for testing; without one the validation split is, else it is not used.

    Two names with the same role are an error.
    """
    name_of: dict[Role, str] = {}
    for name in names:
        role = role_of(name)
        if role is None:
            continue
        if role in name_of:
            raise UserError(
                f"{source} has both {name_of[role]!r} and {name!r}, which mean the same; keep one, "
                "or move its images into the other"
            )
        name_of[role] = name
    test, val = name_of.get("test"), name_of.get("val")
    return SplitAssignment(name_of.get("train"), test or val, val if test else None)
