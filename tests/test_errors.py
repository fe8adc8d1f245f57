"""Errors that a user can put right: how they name the argument, or the option, that does it."""

import pickle

import pytest
import typer

from retouch.cli.terminal.console import user_errors
from retouch.errors import UserError

ERROR = UserError("runs/a holds another run; overwrite it", argument="overwrite=True")


def test_in_python_the_message_ends_with_the_argument():
    assert str(ERROR) == "runs/a holds another run; overwrite it (overwrite=True)"
    assert str(UserError("no such model")) == "no such model"


def test_an_error_from_another_process_is_the_same():
    copy = pickle.loads(pickle.dumps(ERROR))
    assert (str(copy), copy.argument) == (str(ERROR), ERROR.argument)


def test_on_the_command_line_the_message_ends_with_the_option(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(typer.Exit), user_errors():
        raise ERROR
    assert "overwrite it (--overwrite)\n" in capsys.readouterr().err
    with pytest.raises(typer.Exit), user_errors():
        raise UserError("no such images", argument="skip_bad=True")
    assert "no such images (--skip-bad)\n" in capsys.readouterr().err
