"""Which split is for training and which for testing; the formats' tests cover how it is used."""

import pytest

from retouch.data.splits import assign_splits, role_of
from retouch.errors import UserError


@pytest.mark.parametrize(
    ("name", "role"),
    [("Train", "train"), (" TESTING ", "test"), ("valid", "val"), ("trains", None), ("", None)],
)
def test_role_of(name: str, role: str | None):
    assert role_of(name) == role


@pytest.mark.parametrize(
    ("names", "train", "test", "unused", "is_standard"),
    [
        (["train", "test"], "train", "test", None, True),
        (["test"], None, "test", None, True),
        (["train"], "train", None, None, False),
        (["Train", "val"], "Train", "val", None, False),
        (["train", "val", "test", "extra"], "train", "test", "val", False),
        (["extra"], None, None, None, False),
    ],
)
def test_assign_splits(names, train, test, unused, is_standard):
    assignment = assign_splits("photos", names)
    assert (assignment.train, assignment.test, assignment.unused) == (train, test, unused)
    assert assignment.is_standard == is_standard


def test_two_names_for_one_role_are_refused():
    with pytest.raises(UserError, match="photos has both 'val' and 'Validation'"):
        assign_splits("photos", ["val", "Validation"])
