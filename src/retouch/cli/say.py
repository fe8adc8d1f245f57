"""How the program talks: to the screen, of progress, and of mistakes."""

import errno
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

from retouch.devices import started
from retouch.errors import UserError

if TYPE_CHECKING:
    from retouch.data.pictures import Indices

out = Console()
err = Console(stderr=True)


@contextmanager
def plainly(folder: Path | None = None) -> Iterator[None]:
    """Say what went wrong in a sentence; no traceback for what a user can put right."""
    try:
        yield
    except UserError as why:
        _fail(str(why), 1)
    except ValidationError as why:
        first = why.errors()[0]
        _fail(f"{'.'.join(map(str, first['loc']))}={first['input']}: {first['msg']}", 1)
    except KeyboardInterrupt:
        kept = (
            f" What is done is kept in {folder}; the same command goes on there." if folder else ""
        )
        _fail(f"stopped.{kept}", 130)
    except OSError as why:
        if why.errno == errno.ENOSPC:
            _fail(
                "the disk is full. What was written before is whole; free some space and go on", 1
            )
        if why.filename is None:
            raise
        _fail(f"{why.filename}: {why.strerror}", 1)


@contextmanager
def together(device: str) -> Iterator[str]:
    """If torchrun started several processes: they work together, and the first one talks.

    Gives the device to compute on. What goes wrong for all of them is told once.
    """
    if started() < 2:
        yield device
        return
    from retouch.devices import ranks
    from retouch.devices.meeting import joined

    with joined(device) as own:
        out.quiet = err.quiet = not ranks.is_first()
        try:
            yield own
        except (UserError, KeyboardInterrupt, OSError) as why:
            if not ranks.first_to_say(repr(why)):
                raise typer.Exit(130 if isinstance(why, KeyboardInterrupt) else 1) from None
            err.quiet = False
            raise


def leave(code: str | int | None) -> None:
    """End at once: what torch.distributed leaves behind can abort a Python that takes its time.

    Its threads may want Python's lock when Python is gone (github.com/pytorch/pytorch, issue
    190489), and torchrun would call a job that did all its work a failure.
    """
    with suppress(BrokenPipeError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def say_json(value: Any) -> None:
    """The whole answer as one JSON object, for scripts."""
    if out.quiet:  # another process says it
        return
    sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def _fail(message: str, code: int) -> None:
    err.print("[bold red]error:[/]", end=" ", highlight=False)
    err.print(message, highlight=False, soft_wrap=True, markup=False)
    raise typer.Exit(code)


def progress(parts: "Iterable[Indices]", what: str, total: int) -> "Iterator[Indices]":
    """Pass on parts of some images, with a bar where there is a terminal."""
    err.print(what, highlight=False, soft_wrap=True, markup=False)
    with bar(total) as tell:
        for part in parts:
            yield part
            tell(advance=len(part))


@contextmanager
def bar(total: int | None = None) -> Iterator[Callable[..., None]]:
    """A bar where there is a terminal; it is told `advance` or `completed`, and `total`."""
    columns = (*Progress.get_default_columns()[1:2], MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as shown:
        yield partial(shown.update, shown.add_task("", total=total))
