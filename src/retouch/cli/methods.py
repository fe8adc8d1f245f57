"""`retouch methods`."""

from retouch.cli.console import out


def methods() -> None:
    """List the methods and their settings."""
    from rich.table import Table

    from retouch.methods import available_methods

    table = Table("method", "what it does", "settings (change with --set)", box=None)
    for name, method in available_methods().items():
        parts = method.model_dump(include={"update", "replay", "regularizer", "after_task"})
        settings = [f"{p}.{name}={value}" for p in parts for name, value in parts[p].items()]
        table.add_row(name, method.summary, " ".join(settings))
    out.print(table)
    out.print("Every method also has loss, objective, drop_last and schedule.", highlight=False)
    out.print(
        "A part can be replaced (--set after_task=Interpolate) or left out (after_task=none).",
        highlight=False,
    )
