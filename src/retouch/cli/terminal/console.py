"""What the program prints: text, JSON, progress and errors."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from pydantic import ValidationError
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.segment import Segment
from rich.text import Text

from retouch.cli.terminal.resume import Resume
from retouch.distributed import launched_world_size
from retouch.errors import UserError, first_problem, message_of, system_limit
from retouch.text.printable import printable, printable_json

if TYPE_CHECKING:
    from retouch.data.stores.image_store import Indices


class PlainConsole(Console):
    """Prints text literally: no markup, no emoji codes, no control characters from names."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False)

    @property
    def encoding(self) -> str:
        """The encoding of the stream: if it is not UTF-8, rich draws tables with ASCII only."""
        return (getattr(self.file, "encoding", None) or "utf-8").lower()

    def on_broken_pipe(self) -> None:
        """Whoever read the output wants no more of it, as in `| head -1`: go on without a word."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.file.fileno())  # or Python fails to flush it at the end
        os.close(nowhere)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Escape the control characters of a `Text` too, which `render_str` never sees."""
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else printable(segment.text)
            yield segment if text == segment.text else Segment(text, segment.style)


out = PlainConsole()
err = PlainConsole(stderr=True)
_OPTIONS = {
    "earlier": "from",
    "store_images": "replay",
    "folder": "out",
    "leave out cached": "no-cache",
}
"""What to change in Python whose option has another name."""


@contextmanager
def user_errors(folder: Path | None = None, *, overwrite: bool = False) -> Iterator[None]:
    """Print what went wrong in one sentence, without a traceback if the user can fix it.

    Args:
        folder: Where the command resumes if it is given again; it is named after Ctrl-C.
        overwrite: Whether the command replaces the run in the folder, and so would not resume it.
    """
    resume = Resume(folder, overwrite)
    try:
        yield
    except UserError as why:
        _fail(_with_option(why), 1)
    except ValidationError as why:
        _fail(first_problem(why), 1)
    except KeyboardInterrupt:
        _fail(f"stopped. {resume.sentence()}".rstrip(), 130)
    except OSError as why:
        _fail(_system_error(why, resume.command), 1)
    except SystemExit as why:
        _fail(
            f"the code of a model or a method ended the program (sys.exit({why.code!r})) before "
            "its work was done; let it raise an error instead",
            1,
        )
    except RuntimeError as why:
        if not system_limit(why):
            raise
        _fail(_system_error(why, resume.command), 1)


def _with_option(why: UserError) -> str:
    """The library's message, with the option that fixes it instead of the argument."""
    if not why.argument:
        return why.message
    argument, _, value = why.argument.partition("=")
    option = f"--{_OPTIONS.get(argument, argument).replace('_', '-')}"
    if value == "False":
        return f"{why.message} (leave out {option})"
    return f"{why.message} ({option if value in ('', 'True', '…') else f'{option} {value}'})"


def _system_error(why: OSError | RuntimeError, again: str) -> str:
    """What the operating system refused, in one sentence."""
    file = f"{filename}: " if (filename := getattr(why, "filename", None)) else ""
    if limit := system_limit(why):
        return (
            f"{file}{limit.problem}. What was written before is intact; {limit.remedy} and run "
            f"{again} again"
        )
    return f"{file}{getattr(why, 'strerror', None) or message_of(why)}"


@contextmanager
def with_ranks(device: str) -> Iterator[str]:
    """Join the process group if torchrun started several processes; only rank 0 prints.

    Yields the device to compute on. An error that all ranks have is printed once.
    """
    if launched_world_size() < 2:
        yield device
        return
    from retouch.distributed import collectives
    from retouch.distributed.rendezvous import process_group

    with process_group(device) as rank_device:
        out.quiet = err.quiet = not collectives.is_rank0()
        try:
            yield rank_device
        except (UserError, KeyboardInterrupt, OSError) as why:
            if not collectives.reports_error(repr(why)):
                raise typer.Exit(130 if isinstance(why, KeyboardInterrupt) else 1) from None
            err.quiet = False
            raise


def one_of_several_ranks() -> bool:
    """Whether a launcher started several processes; False if what it says makes no sense."""
    with suppress(UserError):
        return launched_world_size() > 1
    return False


def prepare_streams() -> None:
    """Make stdin, stdout and stderr usable, however the program was started.

    One that is closed (`2>&-`) becomes /dev/null: else the next file that is opened would take its
    place, and a library that prints would write into it. Characters that an encoding lacks are
    escaped.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            lowest = os.open(os.devnull, os.O_RDWR)  # the number that is free
            setattr(sys, name, os.fdopen(lowest, mode, encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def exit_now(code: str | int | None) -> None:
    """Exit at once, without Python's usual shutdown, which torch.distributed can abort.

    Its threads may ask for the GIL after Python has ended (github.com/pytorch/pytorch, issue
    190489), and torchrun would then call a job that did all its work a failure.
    """
    with suppress(BrokenPipeError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def print_json(value: Any) -> None:
    """Print the whole result as one JSON object, for scripts."""
    if out.quiet:  # rank 0 prints it
        return
    text = json.dumps(value, indent=1, ensure_ascii=not out.encoding.startswith("utf"))
    sys.stdout.write(printable_json(text) + "\n")


def _fail(message: str, code: int) -> None:
    err.print("error:", end=" ", highlight=False, style="bold red")
    err.print(message, highlight=False, soft_wrap=True, markup=False)
    raise typer.Exit(code)


def print_line(console: Console, line: str) -> None:
    """Print a line without wrapping, highlighting or markup."""
    console.print(line, highlight=False, soft_wrap=True, markup=False)


@contextmanager
def status(activity: str) -> Iterator[None]:
    """Show what is being done: a spinner on a terminal, otherwise one line."""
    if err.is_terminal:
        with err.status(activity):
            yield
        return
    err.print(activity, highlight=False, markup=False)
    yield


def progress(parts: "Iterable[Indices]", activity: str, total: int) -> "Iterator[Indices]":
    """Pass on chunks of image indices: a progress bar on a terminal, elsewhere some lines."""
    if err.quiet:
        yield from parts
        return
    if not err.is_terminal:
        from retouch.train.callbacks.progress import PlainProgress

        yield from PlainProgress("").progress(parts, activity, total)
        return
    print_line(err, activity)
    with progress_bar(total) as update:
        for part in parts:
            yield part
            update(advance=len(part))


@contextmanager
def progress_bar(total: int | None = None) -> Iterator[Callable[..., None]]:
    """A progress bar on a terminal; yields its `update(advance=, completed=, total=)`."""
    columns = (*Progress.get_default_columns()[1:2], MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bars:
        yield partial(bars.update, bars.add_task("", total=total))
