"""What is printed: plain text whatever names contain, and errors in one sentence."""

import errno
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
from commands import error_of, run
from rich.logging import RichHandler
from rich.table import Table
from rich.text import Text
from typer.main import get_command

import retouch
from retouch.cli import app, log_to_terminal
from retouch.cli.terminal import console
from retouch.errors import UserError
from retouch.export.card import escape_markdown
from retouch.text.printable import printable

NAME = "no\x1b[2J\x9b31m\u202e[bold]x[/]:car:\udcff\r\x07"
ESCAPED = r"no\x1b[2J\x9b31m\u202e[bold]x[/]:car:\udcff\x0d\x07"


def test_control_characters_are_escaped_and_nothing_else():
    assert printable(NAME) == ESCAPED
    plain = "Süßes\tכלב ¡漢字! 👩‍👩‍👧 \u200e\n"
    assert printable(plain) == plain


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> StringIO:
    """What both consoles print, 200 columns wide."""
    file = StringIO()
    for stream in (console.out, console.err):
        monkeypatch.setattr(stream, "_file", file)
        monkeypatch.setattr(stream, "_width", 200)
    return file


def test_no_name_controls_the_terminal(screen: StringIO):
    table = Table(title=NAME)
    table.add_column(NAME)
    table.add_row(NAME)
    table.add_row(Text(NAME.replace("\r\x07", "")))  # rich removes these two itself
    console.out.print(table)
    console.out.print(NAME)
    console.err.print(NAME, markup=False, soft_wrap=True)
    handler = RichHandler(console=console.err, show_time=False, show_path=False)
    handler.emit(logging.LogRecord("x", logging.WARNING, "", 0, "%s", (NAME,), None))
    text = screen.getvalue()
    assert text.count(ESCAPED.removesuffix(r"\x0d\x07")) == 7
    assert not set(text) & set("\x1b\x9b\u202e\udcff\r\x07")
    rows = [line for line in text.splitlines() if line.startswith("│")]
    assert rows


def test_an_error_about_a_name_with_control_characters(tmp_path: Path):
    error = run("learn", NAME, "--model", "builtin", "--out", tmp_path / "r", code=1).stderr
    assert ESCAPED in error
    assert not set(error) & set("\x1b\x9b\u202e\r\x07")


def test_the_hubs_retries_are_printed_once(screen: StringIO, monkeypatch: pytest.MonkeyPatch):
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


def test_json_is_safe_for_terminals(capsys: pytest.CaptureFixture[str]):
    console.print_json({NAME: [NAME, "כלב"]})
    text = capsys.readouterr().out
    assert not set(text) & set(NAME[2] + "\x9b\u202e\udcff\r\x07")
    assert json.loads(text) == {NAME: [NAME, "כלב"]}
    assert "כלב" in text


def test_a_model_card_escapes_control_characters():
    assert "\x1b" not in escape_markdown(NAME)
    assert r"&#92;x1b" in escape_markdown(NAME)


def test_ctrl_c_names_a_folder_to_resume_from_only_if_there_is_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for folder, resumable in ((tmp_path, True), (tmp_path / "none", False)):
        with pytest.raises(console.typer.Exit) as end, console.user_errors(folder):
            raise KeyboardInterrupt
        assert end.value.exit_code == 130
        assert ("the same command resumes it" in capsys.readouterr().err) is resumable


@pytest.mark.parametrize(
    ("begun", "aside", "said"),
    [
        (False, False, "run is as it was."),
        (True, True, "run/.replaced until the new one has learned a task."),
        (True, False, "the same command without --overwrite resumes it."),
    ],
)
def test_ctrl_c_says_how_to_resume_a_run_that_replaces_another(
    begun: bool, aside: bool, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    config = tmp_path / "run" / "config.yaml"
    config.parent.mkdir()
    config.write_text("old")

    def replace_and_stop() -> None:
        with console.user_errors(config.parent, overwrite=True):
            if aside:
                (config.parent / ".replaced").mkdir()
                (config.parent / ".replaced" / config.name).touch()
            if begun:
                os.utime(config, (1, 1))
            raise KeyboardInterrupt

    with pytest.raises(console.typer.Exit):
        replace_and_stop()
    message = " ".join(capsys.readouterr().err.split())
    assert message.endswith(said)
    assert ("the same command without --overwrite resumes it" in message) is begun


def fail(why: Exception) -> None:
    """Raise an error where the command line explains it."""
    with pytest.raises(console.typer.Exit), console.user_errors():
        raise why


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
def test_errors_of_the_operating_system(number: int, words: str, screen: StringIO):
    fail(OSError(number, os.strerror(number), "runs/a"))
    fail(OSError(number, os.strerror(number)))
    lines = screen.getvalue().splitlines()
    assert len(lines) == 2
    assert words in lines[0]
    assert "runs/a" in lines[0]
    assert words in lines[1]


@pytest.mark.parametrize(
    "why",
    [
        RuntimeError("can't start new thread"),
        BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)),
    ],
)
def test_no_more_threads_or_processes(why: Exception, screen: StringIO):
    fail(why)
    line = screen.getvalue()
    assert "starts no more threads or processes" in line
    assert "(ulimit -u) and run the same command again" in line
    with pytest.raises(RuntimeError, match="a bug"), console.user_errors():
        raise RuntimeError("a bug")


def test_a_part_that_ends_the_program_does_not_make_it_succeed(screen: StringIO):
    with pytest.raises(console.typer.Exit) as end, console.user_errors():
        raise SystemExit(0)
    assert end.value.exit_code == 1
    assert "ended the program (sys.exit(0)) before its work was done" in screen.getvalue()


def test_a_model_is_not_blamed_for_a_limit_of_the_system(
    evaluated: Path, monkeypatch: pytest.MonkeyPatch
):
    def start(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", start)
    assert "no more threads" in error_of("export", evaluated / "model", "--to", "hf", "-o", "none")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_characters_that_an_encoding_lacks(encoding: str, monkeypatch: pytest.MonkeyPatch):
    """They are escaped, tables are drawn with what there is, and JSON stays JSON."""
    file = TextIOWrapper(BytesIO(), encoding)
    monkeypatch.setattr(sys, "stdout", file)
    console.prepare_streams()
    table = Table("löwe → 漢")
    console.out.print(table)
    console.print_json({"löwe": "漢"})
    file.flush()
    drawn, _, document = file.buffer.getvalue().decode(encoding).partition("{")  # type: ignore[attr-defined]
    assert ("╇" in drawn or "━" in drawn) is (encoding == "utf-8")
    assert (r"\u6f22" in drawn) is (encoding != "utf-8")
    assert json.loads("{" + document) == {"löwe": "漢"}


def test_a_closed_stream_is_replaced(monkeypatch: pytest.MonkeyPatch):
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    console.prepare_streams()
    assert sys.stdin.read() == ""
    fail(UserError("nobody reads this"))
    console.print_json({})
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        stream.close()


@pytest.mark.slow
def test_a_program_whose_stderr_is_closed(tmp_path: Path):
    """The number 2 is not given to a file that the program opens."""
    code = "import os, retouch.cli as c; c.prepare_streams(); print(os.open('x', 66), flush=True)"
    command = [sys.executable, "-c", code]
    process = subprocess.run(
        ["sh", "-c", '"$@" 2>&-', "sh", *command], cwd=tmp_path, stdout=subprocess.PIPE
    )
    assert int(process.stdout) > 2


@pytest.mark.parametrize(("name", "value"), [("WORLD_SIZE", "x"), ("WORLD_SIZE", "0")])
def test_what_a_launcher_sets_must_be_numbers(
    name: str, value: str, evaluated: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(name, value)
    error = error_of("eval", evaluated / "run")
    assert f"{name}={value} is not a whole number of at least 1; torchrun sets it" in error
    assert console.one_of_several_ranks() is False


@pytest.mark.slow
def test_a_file_that_is_too_large_leaves_nothing_behind(tmp_path: Path):
    """The limit applies to a whole process, so the test forks one."""
    resource = pytest.importorskip("resource")
    from tiny import tiny_folder

    model = tiny_folder(tmp_path / "model")
    child = os.fork()
    if not child:
        try:
            os.chdir(tmp_path)
            with Path("output").open("w") as file:
                sys.stderr = sys.stdout = file
                resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
                codes = [_exit_code(_export, model, "hf"), _exit_code(_export, model, "open_clip")]
                file.write(f"codes {codes}\n")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    output = (tmp_path / "output").read_text()
    assert output.count("larger than") == 2, output
    assert "codes [1, 1]" in output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "output"]


def _export(model: Path, to: str) -> None:
    from retouch.export import export, of_model

    with console.user_errors():
        export(of_model(str(model)), to, Path("exported"))  # type: ignore[arg-type]


def _exit_code(work: object, *arguments: object) -> int | str:
    try:
        work(*arguments)  # type: ignore[operator]
    except console.typer.Exit as end:
        return int(end.exit_code)
    except BaseException as why:
        return repr(why)
    return 0


@pytest.mark.parametrize(
    ("argument", "shown"),
    [
        ("", ""),
        ("overwrite=True", " (--overwrite)"),
        ("skip_bad=True", " (--skip-bad)"),
        ("model=…", " (--model)"),
        ("earlier=…", " (--from)"),
        ("folder=…", " (--out)"),
        ("on=ray", " (--on ray)"),
        ("shard=False", " (leave out --shard)"),
        ("leave out cached", " (--no-cache)"),
    ],
)
def test_an_error_names_the_option_that_fixes_it(argument: str, shown: str, screen: StringIO):
    fail(UserError("too large", argument=argument))
    assert screen.getvalue() == f"error: too large{shown}\n"


def test_every_option_in_errors_exists():
    """Each argument that the library's errors name is an option; trainers have no command."""
    package = Path(retouch.__file__).parent
    arguments = {
        argument
        for file in package.rglob("*.py")
        if file.name != "errors.py" and "trainer" not in file.parts
        for argument in re.findall(r'argument="([a-z_]+=[^"]*)"', file.read_text())
    }
    assert {"skip_bad=True"} <= arguments
    options = {option for command in _commands(get_command(app)) for option in _options(command)}
    for argument in arguments:
        text = console._with_option(UserError("", argument=argument))
        (option,) = re.findall(r"--[a-z-]+", text)
        assert option in options, argument


def _commands(command: Any) -> Iterator[Any]:
    yield command
    for child in getattr(command, "commands", {}).values():
        yield from _commands(child)


def _options(command: Any) -> Iterator[str]:
    for parameter in command.params:
        yield from parameter.opts


@pytest.mark.slow
def test_a_reader_that_wants_no_more_is_no_error():
    """As in `retouch methods | head -1`."""
    source, sink = os.pipe()
    os.close(source)
    command = [sys.executable, "-m", "retouch", "methods"]
    ended = subprocess.run(command, stdout=sink, stderr=subprocess.PIPE, check=False)
    os.close(sink)
    assert (ended.returncode, ended.stderr) == (0, b"")
