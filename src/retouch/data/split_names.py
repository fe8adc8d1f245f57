"""What the parts of a data set are called, and what each is for.

People write train, Training, val, valid, validation, test or Testing. Here is decided once, for
folders, tables, shards and `datasets`, what is learned from and what is judged by.
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
NAMES = ", ".join(_ROLES)


def role_of(name: str) -> Role | None:
    """What a part with this name is for, in any case; None where it names no part."""
    return _ROLES.get(name.strip().lower())


@dataclass(frozen=True)
class SplitParts:
    """Which part is learned from, which judged by, and which is left alone."""

    train: str | None
    test: str | None
    unused: str | None

    @property
    def plain(self) -> bool:
        """Whether there is nothing to explain: a part is called test, and the other one train."""
        names = {self.train, self.test} <= {"train", "test", None}
        return names and self.test is not None and self.unused is None

    def note(self, source: str, end: str = "") -> str:
        """A sentence for the user; `end` is a slash where the parts are folders."""
        if self.train is None:
            said = f"{self.test}{end} is to judge by, and there is no part to learn from"
        elif self.test is None:
            said = f"{self.train}{end} is to learn from, and there is no part to judge by"
        else:
            said = f"{self.train}{end} is to learn from, {self.test}{end} to judge by"
        if self.unused is not None:
            said += f"; {self.unused}{end} is not used, since there is {self.test}{end}"
        return f"{source}: {said}"


def choose_parts(source: str, names: Iterable[str]) -> SplitParts:
    """The test part judges; without one the validation part does, which is else not used.

    No name may stand for the same part as another.
    """
    found: dict[Role, str] = {}
    for name in names:
        role = role_of(name)
        if role is None:
            continue
        if role in found:
            raise UserError(
                f"{source} has both {found[role]!r} and {name!r}, which mean the same; keep one, "
                "or move its images into the other"
            )
        found[role] = name
    test, val = found.get("test"), found.get("val")
    return SplitParts(found.get("train"), test or val, val if test else None)
