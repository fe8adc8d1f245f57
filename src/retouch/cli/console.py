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
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.segment import Segment
from rich.text import Text

from retouch.distributed import launched_world_size
from retouch.errors import UserError, first_problem, message_of
from retouch.printable import printable, printable_json

if TYPE_CHECKING:
    from retouch.data.image_store import Indices


class PlainConsole(Console):
    """Prints text as text: no markup, no emoji codes, no control characters of names in it."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """What is drawn; a `Text` gets here as it was made."""
        for segment in super().render(renderable, options):
            shown = segment.text if segment.control else printable(segment.text)
            yield segment if shown == segment.text else Segment(shown, segment.style)


out = PlainConsole()
err = PlainConsole(stderr=True)
_REFUSED = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "your disk quota is used up",
    errno.EFBIG: "a file would be larger than the limit that is set here (ulimit -f) allows",
}


@contextmanager
def user_errors(folder: Path | None = None) -> Iterator[None]:
    """Say what went wrong in a sentence; no traceback for what a user can put right."""
    try:
        yield
    except UserError as why:
        _fail(_with_option(why), 1)
    except ValidationError as why:
        _fail(first_problem(why), 1)
    except KeyboardInterrupt:
        kept = (
            f" What is done is kept in {folder}; the same command goes on there." if folder else ""
        )
        _fail(f"stopped.{kept}", 130)
    except OSError as why:
        _fail(_refused(why), 1)


def _with_option(why: UserError) -> str:
    """The message of the library, with the option that puts it right where there is one."""
    name = why.argument.partition("=")[0].replace("_", "-")
    return f"{why.message} (--{name})" if name else why.message


def _refused(why: OSError) -> str:
    """What the system refused, in a sentence."""
    place = f"{why.filename}: " if why.filename else ""
    if why.errno in _REFUSED:
        return (
            f"{place}{_REFUSED[why.errno]}. What was written before is whole; make room and give "
            "the same command again"
        )
    return f"{place}{why.strerror or message_of(why)}"


@contextmanager
def with_ranks(device: str) -> Iterator[str]:
    """If torchrun started several processes: they work together, and the first one talks.

    Gives the device to compute on. What goes wrong for all of them is told once.
    """
    if launched_world_size() < 2:
        yield device
        return
    from retouch.distributed import collectives
    from retouch.distributed.rendezvous import process_group

    with process_group(device) as own:
        out.quiet = err.quiet = not collectives.is_rank0()
        try:
            yield own
        except (UserError, KeyboardInterrupt, OSError) as why:
            if not collectives.reports_error(repr(why)):
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


def print_json(value: Any) -> None:
    """The whole answer as one JSON object, for scripts."""
    if out.quiet:  # another process says it
        return
    text = json.dumps(value, indent=1, ensure_ascii=False)
    sys.stdout.write(printable_json(text) + "\n")


def _fail(message: str, code: int) -> None:
    err.print("error:", end=" ", highlight=False, style="bold red")
    err.print(message, highlight=False, soft_wrap=True, markup=False)
    raise typer.Exit(code)


@contextmanager
def status(what: str) -> Iterator[None]:
    """Show what is being done as long as it takes, where there is a terminal; a line elsewhere."""
    if err.is_terminal:
        with err.status(what):
            yield
        return
    err.print(what, highlight=False, markup=False)
    yield


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
