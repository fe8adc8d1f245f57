"""The command line as the user gave it, for a run's results."""

import shlex
from contextvars import ContextVar
from typing import Any

from typer.core import TyperGroup

# Newer versions of typer include their own click, so click.get_current_context() does not work.
_arguments: ContextVar[tuple[str, ...]] = ContextVar("arguments", default=())


class Commands(TyperGroup):
    """The group of all commands, which stores the arguments of the one that runs."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _arguments.set(tuple(args))
        return super().parse_args(ctx, args)


def command_line() -> str:
    """The running command, such as `retouch learn photos --out runs/march`; "" outside of one."""
    arguments = _arguments.get()
    return shlex.join(["retouch", *arguments]) if arguments else ""
