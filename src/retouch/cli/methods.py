"""`retouch methods`."""

import json
from typing import Any

from retouch.cli.console import out


def methods() -> None:
    """List the methods and their settings."""
    from rich.table import Table

    from retouch.methods import available_methods

    table = Table("method", "what it does", box=None)
    table.add_column("settings (change with --set)", overflow="fold")
    for name, method in available_methods().items():
        parts = method.model_dump(include={"update", "replay", "regularizer", "after_task"})
        settings = [f"{p}.{name}={_as_yaml(v)}" for p in parts for name, v in parts[p].items()]
        table.add_row(name, method.summary, " ".join(settings))
    out.print(table)
    out.print("Every method also has loss, objective, drop_last and schedule.", highlight=False)
    out.print(
        "A part can be replaced (--set after_task=Interpolate) or left out (after_task=none).",
        highlight=False,
    )


def _as_yaml(value: Any) -> str:
    """A value as `--set` reads it."""
    return value if isinstance(value, str) else json.dumps(value)
