"""A cell on another machine, which may not see the output folder."""

import os
import pickle
import platform
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from retouch.bench.cell import DONE, Cell
from retouch.bench.cell_runner import CellRunner
from retouch.bench.events import Event, Failed, Finished, Listener, Outcome
from retouch.bench.worker import attempt, logged
from retouch.files import write_atomically

MARKER = ".seen"
"""A file with the bench's token: a worker that reads it sees the same output folder."""


@dataclass
class RemoteResult:
    """How a cell ended, and its files if they are on the worker's own disk."""

    outcome: Outcome
    files: Mapping[str, bytes] = field(default_factory=dict)

    def write_files(self, folder: Path) -> None:
        """Write the files; the one that marks the cell as finished comes last."""
        for name in sorted(self.files, key=lambda name: name == DONE):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / name, self.files[name])


@dataclass
class RemoteJob:
    """A cell to run on another machine."""

    runner: CellRunner
    cell: Cell
    token: str
    threads: int
    folder: str = field(default_factory=os.getcwd)
    environment: Mapping[str, str] = field(
        default_factory=lambda: {k: v for k, v in os.environ.items() if k.startswith("RETOUCH_")}
    )

    def __call__(self, mailbox: Any) -> RemoteResult:
        """Run it; progress goes to the mailbox."""
        with suppress(OSError):
            os.chdir(self.folder)  # if it exists there, relative paths mean the same
        for name, value in self.environment.items():
            os.environ.setdefault(name, value)
        torch.set_num_threads(max(1, self.threads))
        self.runner.data.progress = logged

        def send(event: Event) -> None:
            mailbox.put.remote(pickle.dumps(event))

        where = f"{platform.node()}, process {os.getpid()}"
        if self.sees_output():
            return RemoteResult(attempt(self.runner, self.cell, send, where))
        return self._run_locally(send, where)

    def sees_output(self) -> bool:
        file = self.runner.out / MARKER
        return file.is_file() and file.read_text() == self.token

    def _run_locally(self, listener: Listener, where: str) -> RemoteResult:
        """Run in a local folder that another try on this machine finds again."""
        if self.runner.keep_deltas:
            reason = (
                f"{where} does not see {self.runner.out}, which keep_deltas needs; choose an "
                "output folder that all machines see"
            )
            return RemoteResult(Failed(self.cell, reason))
        name = sha256(f"{os.getuid()} {self.runner.out}".encode()).hexdigest()[:12]
        out = Path(tempfile.gettempdir()) / f"retouch-bench-{name}"
        out.mkdir(mode=0o700, exist_ok=True)
        outcome = attempt(replace(self.runner, out=out), self.cell, listener, where)
        folder, files = self.cell.folder(out), {}
        if isinstance(outcome, Finished):
            paths = [path for path in folder.rglob("*") if path.is_file()]
            files = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
            shutil.rmtree(folder)
        return RemoteResult(outcome, files)
