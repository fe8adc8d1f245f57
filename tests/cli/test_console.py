"""What reaches the terminal: text alone, whatever the names of files and classes hold."""

import errno
import json
import logging
import os
import sys
from io import StringIO
from pathlib import Path

import pytest
from commands import run
from rich.logging import RichHandler
from rich.table import Table
from rich.text import Text

from retouch.cli import console, log_to_terminal
from retouch.errors import UserError
from retouch.export.markdown import escape_markdown
from retouch.printable import printable

ODD = "no\x1b[2J\x9b31m\u202e[bold]x[/]:car:\udcff\r\x07"
SHOWN = r"no\x1b[2J\x9b31m\u202e[bold]x[/]:car:\udcff\x0d\x07"


def test_controls_are_shown_and_all_else_stays():
    assert printable(ODD) == SHOWN
    plain = "Süßes\tכלב ¡漢字! 👩‍👩‍👧 \u200e\n"
    assert printable(plain) == plain


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> StringIO:
    """Both consoles write into it, as on a terminal of 200 columns."""
    file = StringIO()
    for each in (console.out, console.err):
        monkeypatch.setattr(each, "_file", file)
        monkeypatch.setattr(each, "_width", 200)
    return file


def test_nothing_in_a_name_steers_the_terminal(screen: StringIO):
    table = Table(title=ODD)
    table.add_column(ODD)
    table.add_row(ODD)
    table.add_row(Text(ODD.replace("\r\x07", "")))  # rich takes these two away by itself
    console.out.print(table)
    console.out.print(ODD)
    console.err.print(ODD, markup=False, soft_wrap=True)
    handler = RichHandler(console=console.err, show_time=False, show_path=False)
    handler.emit(logging.LogRecord("x", logging.WARNING, "", 0, "%s", (ODD,), None))
    text = screen.getvalue()
    assert text.count(SHOWN.removesuffix(r"\x0d\x07")) == 7
    assert not set(text) & set("\x1b\x9b\u202e\udcff\r\x07")
    rows = [line for line in text.splitlines() if line.startswith("│")]
    assert rows


def test_an_error_about_an_odd_name(tmp_path: Path):
    said = run("learn", ODD, "--model", "builtin", "--out", tmp_path / "r", code=1).stderr
    assert SHOWN in said
    assert not set(said) & set("\x1b\x9b\u202e\r\x07")


def test_the_hubs_retries_are_told_once(screen: StringIO, monkeypatch: pytest.MonkeyPatch):
    import huggingface_hub.utils  # which adds a handler of its own

    assert huggingface_hub.utils
    log = logging.getLogger("huggingface_hub")
    assert log.handlers
    monkeypatch.setattr(log, "propagate", True)
    monkeypatch.setattr(log, "handlers", [logging.StreamHandler(screen)])
    monkeypatch.setattr(logging.root, "handlers", [])
    log_to_terminal()
    log.getChild("utils").warning("Retrying in 1s [Retry 1/5].")
    logging.getLogger("retouch").warning("[a] note")
    assert screen.getvalue().count("Retrying") == 1
    assert screen.getvalue().count("[a] note") == 1


def test_json_is_for_terminals_too(capsys: pytest.CaptureFixture[str]):
    console.print_json({ODD: [ODD, "כלב"]})
    text = capsys.readouterr().out
    assert not set(text) & set(ODD[2] + "\x9b\u202e\udcff\r\x07")
    assert json.loads(text) == {ODD: [ODD, "כלב"]}
    assert "כלב" in text


def test_a_card_shows_controls_too():
    assert "\x1b" not in escape_markdown(ODD)
    assert r"&#92;x1b" in escape_markdown(ODD)


def failing(number: int, file: str | None = None) -> str:
    def fail() -> None:
        with console.user_errors():
            raise OSError(number, os.strerror(number), *([file] if file else []))

    with pytest.raises(console.typer.Exit):
        fail()
    return ""


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EDQUOT, "quota"),
        (errno.EFBIG, "larger than"),
        (errno.EROFS, "Read-only file system"),
        (errno.EACCES, "Permission denied"),
        (errno.ENAMETOOLONG, "File name too long"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_what_the_system_refuses(number: int, words: str, screen: StringIO):
    failing(number, "runs/a")
    failing(number)
    lines = screen.getvalue().splitlines()
    assert len(lines) == 2
    assert words in lines[0]
    assert "runs/a" in lines[0]
    assert words in lines[1]


def test_a_large_file_is_refused_and_nothing_half_is_left(tmp_path: Path):
    """The limit is of this process's files: in a child, so that it ends with it."""
    resource = pytest.importorskip("resource")
    from tiny import tiny_folder

    model = tiny_folder(tmp_path / "model")
    child = os.fork()
    if not child:
        try:
            os.chdir(tmp_path)
            with Path("said").open("w") as file:
                sys.stderr = sys.stdout = file
                resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
                codes = [_code(_export, model, "hf"), _code(_export, model, "open_clip")]
                file.write(f"codes {codes}\n")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    said = (tmp_path / "said").read_text()
    assert said.count("larger than") == 2, said
    assert "codes [1, 1]" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "said"]


def _export(model: Path, to: str) -> None:
    from retouch.export import export, of_model

    with console.user_errors():
        export(of_model(str(model)), to, Path("there"))  # type: ignore[arg-type]


def _code(work: object, *arguments: object) -> int | str:
    try:
        work(*arguments)  # type: ignore[operator]
    except console.typer.Exit as end:
        return int(end.exit_code)
    except BaseException as why:
        return repr(why)
    return 0


def test_user_errors_stay_what_they_are(screen: StringIO):
    def fail() -> None:
        with console.user_errors():
            raise UserError("too odd")

    with pytest.raises(console.typer.Exit):
        fail()
    assert screen.getvalue() == "error: too odd\n"
