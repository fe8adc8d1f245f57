"""A model's name may be a path."""

from pathlib import Path

import pytest
from tiny import tiny_folder

import retouch
from retouch.errors import UserError


def test_a_model_is_named_by_a_path_too(tmp_path: Path):
    assert retouch.load(tiny_folder(tmp_path / "m")).name == str(tmp_path / "m")
    with pytest.raises(UserError, match="name cannot be 7; give a folder, a hub id"):
        retouch.load(7)  # type: ignore[arg-type]
