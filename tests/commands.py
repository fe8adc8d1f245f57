"""The command line in this process, which need not wait for torch each time."""

from typing import Any

from typer.testing import CliRunner

from retouch.cli import app


def run(*words: object, code: int = 0) -> Any:
    """What a command prints, to its output and to its errors; what it must not raise is raised."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.stdout + done.stderr
    return done
