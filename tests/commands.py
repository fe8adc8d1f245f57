"""Run the command line: in this process, which need not import torch again, or as a program."""

import json
import os
import subprocess
import sys
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


def run_program(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own. It takes seconds: mark such a test slow."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "retouch", *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=environment, **options
    )
