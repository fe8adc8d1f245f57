"""The program in a process of its own, forked from this one: it need not import torch again."""

import gc
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from retouch.cli import main


class Forked:
    """A function in a forked process, as `subprocess.Popen` runs a program."""

    def __init__(self, folder: Path, function: Callable[..., Any], *args: Any) -> None:
        """Start it; what it prints goes to files in the folder, which is made."""
        folder.mkdir(parents=True, exist_ok=True)
        self._files = folder / "stdout", folder / "stderr"
        fork = multiprocessing.get_context("fork")
        self.process: BaseProcess = fork.Process(target=self._run, args=(function, args))
        self.process.start()

    def _run(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        # What pytest put in place of the streams of a program, and of what Ctrl-C does.
        for number, file in enumerate(self._files, start=1):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            stream = os.fdopen(number, "w", closefd=False, buffering=1)
            setattr(sys, ("stdout", "stderr")[number - 1], stream)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        gc.freeze()  # the collector would write to, and so copy, all memory from before
        code: Any = 1
        try:
            code = function(*args)
        except SystemExit as end:
            code = end.code
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)

    def wait(self, timeout: float = 60) -> tuple[int | None, str, str]:
        """The exit code, stdout and stderr; a process that takes longer is killed."""
        self.process.join(timeout)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        stdout, stderr = (file.read_text() for file in self._files)
        return self.process.exitcode, stdout, stderr


def run_program(*words: object) -> None:
    """The program with these arguments, in the current process, which it may end."""
    sys.argv = ["retouch", *map(str, words)]
    main()
