"""The command line as the user gave it, for a run's results."""

import shlex
from typing import Any

import click
from typer.core import TyperGroup

_ARGUMENTS = "retouch.arguments"


class Commands(TyperGroup):
    """All commands; remembers the arguments of the one that runs."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[_ARGUMENTS] = list(args)
        return super().parse_args(ctx, args)


def command_line() -> str:
    """The running command, such as `retouch learn photos --out runs/march`; "" outside of one."""
    context = click.get_current_context(silent=True)
    arguments = context.meta.get(_ARGUMENTS) if context else None
    return shlex.join(["retouch", *arguments]) if arguments else ""
