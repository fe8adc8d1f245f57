"""The command line: as the user gave it, for a run's results, and with `~` expanded."""

import re
import shlex
from contextvars import ContextVar
from os.path import expanduser
from typing import Any

from typer.core import TyperGroup

from retouch.text.printable import printable

# Newer versions of typer include their own click, so click.get_current_context() does not work.
_arguments: ContextVar[tuple[str, ...]] = ContextVar("arguments", default=())
_VALUE = re.compile(r"(--[\w-]+=|-[a-z])?(~.*)", re.DOTALL)
"""A word whose value begins with `~`: `~/run`, `--out=~/run` or `-o~/run`."""


class Commands(TyperGroup):
    """The group of all commands, which stores the arguments of the one that runs."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _arguments.set(tuple(args))
        return super().parse_args(ctx, [_expand_home(word) for word in args])


def command_line() -> str:
    """The running command, such as `retouch learn photos --out runs/march`; "" outside of one.

    Bytes in it that are not text are escaped: it is stored in documents.
    """
    arguments = _arguments.get()
    return printable(shlex.join(["retouch", *arguments])) if arguments else ""


def _expand_home(word: str) -> str:
    """The word with the home folder for `~`, which a shell expands only where a word begins."""
    if not (match := _VALUE.fullmatch(word)):
        return word
    return (match[1] or "") + expanduser(match[2])  # noqa: PTH111 - not all are paths
