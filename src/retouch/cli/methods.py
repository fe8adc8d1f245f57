"""`retouch methods`."""

import ast
import inspect
import json
import textwrap
from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import BaseModel

from retouch.cli.options import complete_method
from retouch.cli.terminal.console import out, user_errors

if TYPE_CHECKING:
    from rich.table import Table

    from retouch.methods import Method


def methods(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="METHOD",
            help="Explain the settings of this one. [default: list all]",
            show_default=False,
            autocompletion=complete_method,
        ),
    ] = None,
) -> None:
    """List the methods and their settings, or explain those of one.

    Example: `retouch methods spu+`
    """
    with user_errors():
        from retouch.methods import available_methods, recipe

        if name is not None:
            method = recipe(name)
            out.print(f"{method.name}: {method.summary}\n", highlight=False)
            if method.adds_class_vectors:
                out.print(f"{_CLASS_VECTORS}\n", highlight=False)
            out.print(_settings_table(method))
            return
        out.print(_methods_table(available_methods().values()))
        out.print(
            "Every method also has loss, objective, drop_last, schedule and store_images.",
            highlight=False,
        )
        out.print(
            "A part can be replaced (--set after_task=Interpolate) or left out (after_task=none).",
            highlight=False,
        )


_CLASS_VECTORS = (
    "Each new class gets a vector that is multiplied with visual features, in closed form from one "
    "pass over the images; the vectors are kept beside the model, which is unchanged. That is "
    "enough where classes are fixed and told apart by their names. A prompt about a new class, and "
    "a search by text, are answered as before. Other classes still answer by prompt."
)


def _methods_table(methods: "Iterable[Method]") -> "Table":
    from rich.table import Table

    from retouch.methods.method import PARTS

    table = Table("method", "what it does", box=None)
    table.add_column("settings (change with --set)", overflow="fold")
    for method in methods:
        parts = method.model_dump(include=set(PARTS))
        settings = [f"{p}.{name}={_as_yaml(v)}" for p in parts for name, v in parts[p].items()]
        table.add_row(method.name, method.summary, " ".join(settings))
    return table


def _settings_table(method: "Method") -> "Table":
    from rich.table import Table

    from retouch.methods.method import PARTS

    table = Table(box=None)
    table.add_column("setting (change with --set)", overflow="fold")
    table.add_column("what it is")
    owners: dict[str, Any] = {f"{part}.": getattr(method, part) for part in PARTS}
    for prefix, owner in {**owners, "": method}.items():
        docstrings = field_docstrings(type(owner))
        for field, value in owner.model_dump().items():
            if prefix or field not in (*PARTS, "name", "summary"):
                setting = f"{prefix}{field}={_as_yaml(value)}"
                table.add_row(setting, docstrings.get(field, ""))
    return table


def field_docstrings(kind: type[BaseModel]) -> dict[str, str]:
    """The string below each field of a class, in one line; of inherited fields, too.

    Pydantic's own `use_attribute_docstrings` would parse every class whenever methods are imported,
    which takes 0.2 s.

    Args:
        kind: A pydantic model whose source can be read.
    """
    docstrings: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if issubclass(base, BaseModel) and base is not BaseModel:
            docstrings |= _own_docstrings(base)
    return docstrings


def _own_docstrings(kind: type[BaseModel]) -> dict[str, str]:
    try:
        source = textwrap.dedent(inspect.getsource(kind))
    except (OSError, TypeError):  # typed into a shell
        return {}
    body = ast.parse(source).body[0].body  # type: ignore[attr-defined]
    docstrings = {}
    for field, below in pairwise(body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                docstrings[name] = " ".join(text.split())
    return docstrings


def _as_yaml(value: Any) -> str:
    """A value as `--set` reads it."""
    return value if isinstance(value, str) else json.dumps(value)
