"""Run the command line in this process, which need not import torch again."""

import json
from typing import Any

from typer.testing import CliRunner

from retouch.cli import app


def run(*words: object, code: int = 0) -> Any:
    """Run a command in this process, which must end with this exit code.

    The result has `stdout` and `stderr`. Any exception that is not an exit is raised.
    """
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.stdout + result.stderr
    return result


def run_json(*words: object, code: int = 0) -> dict[str, Any]:
    """Run a command with `--json`: one object, and nothing else on stdout."""
    return dict(json.loads(run(*words, "--json", code=code).stdout))


def error_of(*words: object, code: int = 1) -> str:
    """The error of a command that must fail, in one line."""
    return " ".join(run(*words, code=code).stderr.split())
