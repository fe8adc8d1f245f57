"""What the settings of methods mean is read from the strings below them."""

from pydantic import BaseModel

from retouch.cli.methods import field_docstrings
from retouch.methods import RECIPES


class First(BaseModel):
    one: int = 1
    """The first
    of them.
    """
    two: int = 2


class Second(First):
    three: int = 3
    """The third."""


def test_of_own_and_inherited_fields():
    assert field_docstrings(Second) == {"one": "The first of them.", "three": "The third."}


def test_every_setting_of_every_method_is_explained():
    for method in RECIPES.values():
        for owner in (method, *method.parts.values()):
            missing = type(owner).model_fields.keys() - field_docstrings(type(owner))
            assert not missing, f"{method.name}: {type(owner).__name__} does not explain {missing}"
