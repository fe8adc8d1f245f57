"""Every argument of the public API is explained where it is declared, and none that is gone.

A function, a method or an `__init__` explains its arguments under `Args:` (Google style, which
mkdocstrings reads). A field of a dataclass or of a pydantic model is explained by the string below
it.
"""

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pydantic
import pytest

import retouch

ROOT = Path(__file__).resolve().parents[1]
SECTION = re.compile(r"^Args:\n((?:(?:    .*)?\n?)*)", re.MULTILINE)
ARGUMENT = re.compile(r"^    \*{0,2}(\w+)(?: \([^)]*\))?: \S", re.MULTILINE)


def packages() -> list[str]:
    folder = Path(retouch.__file__).parent
    names = sorted(path.parent.name for path in folder.glob("*/__init__.py"))
    return ["retouch", *(f"retouch.{name}" for name in names)]


def public_objects() -> dict[str, Any]:
    """All functions and classes in `__all__` of the package and its subpackages, by full name."""
    found = {}
    for package in map(import_module, packages()):
        for name in getattr(package, "__all__", ()):
            thing = getattr(package, name)
            if inspect.isclass(thing) or inspect.isfunction(thing):
                found[f"{thing.__module__}.{thing.__qualname__}"] = thing
    return found


def callables(thing: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """A function, or the public methods that a class adds to those of its bases."""
    if inspect.isfunction(thing):
        yield thing.__qualname__, thing
        return
    for name, member in vars(thing).items():
        function = getattr(member, "__func__", member)
        if name == "__init__":
            added = not has_fields(thing)
        else:
            added = not name.startswith("_") and not any(hasattr(b, name) for b in thing.__bases__)
        if added and inspect.isfunction(function):
            yield f"{thing.__name__}.{name}", function


def arguments(function: Callable[..., Any]) -> list[str]:
    names = list(inspect.signature(function).parameters)
    return [name for name in names if name not in ("self", "cls") and not name.startswith("_")]


def explained(docstring: str | None) -> list[str]:
    section = SECTION.search(f"{inspect.cleandoc(docstring or '')}\n")
    return ARGUMENT.findall(section[1]) if section else []


def has_fields(cls: type) -> bool:
    """Whether its `__init__` is made from its fields."""
    return dataclasses.is_dataclass(cls) or issubclass(cls, pydantic.BaseModel)


def fields(cls: type) -> list[str]:
    """The public fields that a dataclass or a pydantic model declares itself."""
    if dataclasses.is_dataclass(cls):
        names = [field.name for field in dataclasses.fields(cls) if field.init]
    elif issubclass(cls, pydantic.BaseModel):
        names = list(cls.model_fields)
    else:
        return []
    own = inspect.get_annotations(cls)
    return [name for name in names if name in own and not name.startswith("_")]


@cache
def explained_fields(cls: type) -> list[str]:
    """The attributes that have a string right below them."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    return [
        first.target.id
        for first, second in zip(node.body, node.body[1:], strict=False)
        if isinstance(first, ast.AnnAssign)
        and isinstance(first.target, ast.Name)
        and isinstance(second, ast.Expr)
        and isinstance(second.value, ast.Constant)
    ]


PUBLIC = public_objects()


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_thing_says_what_it_is(name: str):
    assert PUBLIC[name].__doc__
    for label, function in callables(PUBLIC[name]):
        assert function.__doc__ or label.endswith("__init__"), f"{label} has no docstring"


@pytest.mark.parametrize("name", PUBLIC)
def test_every_argument_is_explained_and_no_other(name: str):
    thing = PUBLIC[name]
    for label, function in callables(thing):
        text = function.__doc__
        if label.endswith(".__init__") and not explained(text):
            text = thing.__doc__
        assert explained(text) == arguments(function), label
    if inspect.isclass(thing):
        missing = set(fields(thing)) - set(explained_fields(thing)) - set(explained(thing.__doc__))
        assert not missing, f"fields of {thing.__name__} without a string below them"


def test_the_reference_shows_every_public_name():
    pages = {path.stem: path.read_text() for path in (ROOT / "docs" / "api").glob("*.md")}
    shown = re.findall(r"^::: retouch\.(\w+)$", pages["retouch"], re.MULTILINE)
    assert sorted(shown) == sorted(retouch.__all__)
    for package in packages()[1:]:
        if getattr(import_module(package), "__all__", None):
            assert f"::: {package}\n" in pages[package.removeprefix("retouch.")]
