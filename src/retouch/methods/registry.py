"""Methods by name: the built-in ones, those of installed packages, and those registered in Python.

A package offers methods through the entry point group `retouch.methods`. In its `pyproject.toml`:

    [project.entry-points."retouch.methods"]
    l2-sp = "my_package.methods:l2_sp"

Every process then knows them: the command line, the workers of a bench, a run that is continued.
"""

import logging
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from retouch.arguments import check_arguments
from retouch.errors import UserError
from retouch.methods.method import Method
from retouch.methods.recipes import RECIPES
from retouch.process.user_code import call_user_code

GROUP = "retouch.methods"
log = logging.getLogger("retouch")
_registered: dict[str, Method] = {}


@check_arguments(method="give a retouch.methods.Method")
def register(method: Method, *, replace: bool = False) -> Method:
    """Make a method available under its name, in this process.

    Args:
        method: The method. Its name must not be taken.
        replace: Replace a method that was registered under this name before, as when a cell of a
            notebook is run again. Built-in methods cannot be replaced.

    Returns:
        The same method.
    """
    if method.name in RECIPES:
        raise UserError(f"{method.name!r} is the name of a built-in method; choose another name")
    if not replace and method.name in available_methods():
        raise UserError(
            f"a method {method.name!r} is registered already; choose another name, or pass "
            "replace=True"
        )
    _registered[method.name] = method
    return method


def available_methods() -> dict[str, Method]:
    """All methods by name: built-in, from installed packages, and registered ones."""
    return {**RECIPES, **_installed()[0], **_registered}


@check_arguments()
def recipe(name: str, changes: dict[str, Any] | None = None) -> Method:
    """A method by its name.

    Args:
        name: One of `available_methods()`, such as `spu`.
        changes: Settings of its parts to change, such as `{"update.rate": 0.05}`.
    """
    methods = RECIPES if name in RECIPES else available_methods()
    if name not in methods:
        if problem := loading_problem(name):
            raise UserError(problem)
        raise UserError(f"there is no method {name!r}; there are {', '.join(methods)}")
    return methods[name].with_change(changes or {})


def loading_problem(name: str) -> str | None:
    """Why the method of an installed package could not be loaded; None if it could.

    Args:
        name: The name of the method.
    """
    return _installed()[1].get(name)


@cache
def _installed() -> tuple[dict[str, Method], dict[str, str]]:
    """The methods of installed packages, and why others could not be loaded, by name.

    One that fails does not affect the others: it is logged, and an error where it is asked for.
    """
    methods: dict[str, Method] = {}
    problems: dict[str, str] = {}
    for entry_point in entry_points(group=GROUP):
        try:
            method = _load(entry_point, taken={**RECIPES, **methods})
        except UserError as why:
            log.warning("%s", why)
            problems[entry_point.name] = str(why)
        else:
            methods[method.name] = method
    return methods, problems


def _load(entry_point: EntryPoint, taken: dict[str, Method]) -> Method:
    package = entry_point.dist.name if entry_point.dist else entry_point.value
    label = f"the method {entry_point.name!r} of the package {package}"
    if entry_point.name in taken:
        raise UserError(f"{label} is ignored: there is another method of that name")
    method = call_user_code(f"{label} cannot be loaded; repair or remove it", entry_point.load)
    if not isinstance(method, Method):
        raise UserError(f"{label} is ignored: {entry_point.value} is not a retouch.methods.Method")
    if method.name != entry_point.name:
        raise UserError(
            f"{label} is ignored: it calls itself {method.name!r}; give the entry point that name"
        )
    return method
