"""Loading a CLIP by name."""

import pytest

import retouch
from retouch.errors import UserError


@pytest.mark.parametrize("name", ["no/such/folder", "./nothing", "/nowhere/model"])
def test_a_missing_folder(name: str):
    with pytest.raises(UserError, match="there is no folder"):
        retouch.load(name)
