"""`retouch methods`."""

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retouch.cli.console import out, user_errors
from retouch.cli.options import complete_method

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

    from retouch.methods.field_docstrings import field_docstrings
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


def _as_yaml(value: Any) -> str:
    """A value as `--set` reads it."""
    return value if isinstance(value, str) else json.dumps(value)
