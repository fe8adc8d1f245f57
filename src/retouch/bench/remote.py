"""A cell on another machine, which may not see the folder where results go."""

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
from typing import TYPE_CHECKING, Any

import torch

from retouch.bench.cell import DONE, Cell
from retouch.bench.engines import Failed, Finished, News, WorkerLost
from retouch.bench.worker import attempt, logged
from retouch.files import write_atomically

if TYPE_CHECKING:
    from retouch.bench.runner import Bench

SEEN = ".seen"
"""Holds the grid's token: who reads it there sees the same folder."""


@dataclass
class RemoteResult:
    """How a cell ended, and its files if they lie on a machine's own disk."""

    end: Finished | Failed | WorkerLost
    files: Mapping[str, bytes] = field(default_factory=dict)

    def put(self, folder: Path) -> None:
        """In their place, whole; what says that the cell is finished comes last."""
        for name in sorted(self.files, key=lambda name: name == DONE):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / name, self.files[name])


@dataclass
class RemoteJob:
    """A cell to be run elsewhere."""

    bench: "Bench"
    cell: Cell
    token: str
    threads: int
    folder: str = field(default_factory=os.getcwd)
    settings: Mapping[str, str] = field(
        default_factory=lambda: {k: v for k, v in os.environ.items() if k.startswith("RETOUCH_")}
    )

    def __call__(self, mail: Any) -> RemoteResult:
        """Run it; what happens meanwhile is left in the mailbox."""
        with suppress(OSError):
            os.chdir(self.folder)  # where there is such a one, relative paths mean the same
        for name, value in self.settings.items():
            os.environ.setdefault(name, value)
        torch.set_num_threads(max(1, self.threads))
        self.bench.on.progress = logged

        def tell(news: News) -> None:
            mail.put.remote(pickle.dumps(news))

        where = f"{platform.node()}, process {os.getpid()}"
        if self.sees():
            return RemoteResult(attempt(self.bench, self.cell, tell, where))
        return self._alone(tell, where)

    def sees(self) -> bool:
        file = self.bench.out / SEEN
        return file.is_file() and file.read_text() == self.token

    def _alone(self, tell: Any, where: str) -> RemoteResult:
        """In a folder that another try on this machine finds again."""
        if self.bench.keep_deltas:
            problem = f"{where} does not see {self.bench.out}, which --keep-deltas needs"
            return RemoteResult(
                Failed(self.cell, f"{problem}; choose an --out that all machines see")
            )
        name = sha256(f"{os.getuid()} {self.bench.out}".encode()).hexdigest()[:12]
        out = Path(tempfile.gettempdir()) / f"retouch-bench-{name}"
        out.mkdir(mode=0o700, exist_ok=True)
        end = attempt(replace(self.bench, out=out), self.cell, tell, where)
        folder, files = self.cell.folder(out), {}
        if isinstance(end, Finished):
            found = [path for path in folder.rglob("*") if path.is_file()]
            files = {str(path.relative_to(folder)): path.read_bytes() for path in found}
            shutil.rmtree(folder)
        return RemoteResult(end, files)
