"""Cells on a Ray cluster: Ray picks the machine, with a GPU or a share of the CPU cores per cell.

Workers need the same version of retouch. A worker that sees the output folder writes there, and a
cell whose worker died resumes from its checkpoint. Other workers run the cell in a local folder and
send the small files of the finished cell back.
"""

import logging
import os
import pickle
import platform
import shutil
import tempfile
import uuid
import warnings
from collections.abc import Callable, Mapping
from contextlib import chdir, suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import Any

import torch

from retouch.bench.cell import DONE, Cell
from retouch.bench.cell_runner import CellRunner
from retouch.bench.engines.engine import Engine
from retouch.bench.engines.events import Event, Failed, Finished, Listener, Outcome, WorkerLost
from retouch.bench.engines.worker import attempt, logged
from retouch.errors import UserError
from retouch.files.write import write_atomically
from retouch.process.child_process import safe_path
from retouch.version import VERSION

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


log = logging.getLogger("retouch")

POLL_SECONDS = 0.5
"""Seconds between two looks at the mailbox."""
SAVE_SECONDS = 30.0
"""Seconds that interrupted cells have to save their checkpoints."""

VERSIONS = {"retouch": VERSION, "torch": torch.__version__}


class RayEngine(Engine):
    """As many cells at a time as the cluster has room for."""

    shares_disks = False

    def __init__(
        self,
        address: str = "ray",
        jobs: int | None = None,
        device: str = "auto",
        gpus_per_cell: float | None = None,
        cpus_per_cell: float | None = None,
    ) -> None:
        if device not in ("auto", "cuda", "cpu"):
            raise UserError(f"device={device!r}: Ray chooses the GPU; use auto, cuda or cpu")
        self.size = jobs or inf
        self._ray, self._owns_connection = _connect(address)
        self._resources = self._resources_per_cell(device, gpus_per_cell, cpus_per_cell)
        self._remote = self._ray.remote(max_retries=0, **self._resources)(_worker_function())
        self._mailbox = self._ray.remote(num_cpus=0)(_mailbox_class()).remote()
        self._token = uuid.uuid4().hex
        self._jobs: dict[Any, tuple[CellRunner, Cell]] = {}
        self._marker: Path | None = None

    @property
    def busy(self) -> int:
        return len(self._jobs)

    def call(self, function: Callable[[], Any]) -> Any:
        """The result of a function on a worker, whose machine may differ from this one."""
        ref = self._remote.remote(pickle.dumps(function), VERSIONS)
        while not self._ray.wait([ref], timeout=SAVE_SECONDS)[0]:
            log.warning("waiting for a Ray worker with room for a cell (%s)", self._free())
        return _unpack(self._ray.get(ref))

    def start(self, runner: CellRunner, cell: Cell) -> None:
        out = runner.out.absolute()
        if self._marker is None:
            self._marker = out / MARKER
            write_atomically(self._marker, self._token)
        threads = int(self._resources["num_cpus"])
        job = RemoteJob(replace(runner, out=out), cell, self._token, threads)
        ref = self._remote.remote(pickle.dumps(job), VERSIONS, self._mailbox)
        self._jobs[ref] = runner, cell

    def wait(self, listener: Listener) -> list[Outcome]:
        ready, _ = self._ray.wait(list(self._jobs), num_returns=1, timeout=POLL_SECONDS)
        try:
            for event in self._ray.get(self._mailbox.take.remote(), timeout=10 * POLL_SECONDS):
                listener(pickle.loads(event))
        except self._ray.exceptions.RayError:
            pass  # progress is optional; outcomes come another way
        return [self._outcome(ref) for ref in ready]

    def _outcome(self, ref: Any) -> Outcome:
        runner, cell = self._jobs.pop(ref)
        errors = self._ray.exceptions
        try:
            result: RemoteResult = _unpack(self._ray.get(ref))
        except UserError as why:
            return Failed(cell, str(why))
        except errors.RayTaskError as why:
            return Failed(cell, f"{type(why.cause).__name__}: {why.cause}", str(why))
        except errors.RayError as why:
            return WorkerLost(cell, f"its worker died ({str(why).strip().splitlines()[0]})")
        result.write_files(cell.folder(runner.out))
        return result.outcome

    def close(self, listener: Listener) -> None:
        refs = list(self._jobs)
        super().close(listener)
        try:
            for ref in refs:
                self._ray.cancel(ref)
            if refs:
                self._ray.wait(refs, num_returns=len(refs), timeout=SAVE_SECONDS)
        finally:
            self._jobs.clear()
            if self._marker is not None:
                self._marker.unlink(missing_ok=True)
            self._ray.kill(self._mailbox)
            if self._owns_connection:
                self._ray.shutdown()

    def _free(self) -> str:
        free, total = self._ray.available_resources(), self._ray.cluster_resources()
        needs = {"GPU": self._resources["num_gpus"], "CPU": self._resources["num_cpus"]}
        return "; ".join(
            f"it needs {count:g} {name}, {free.get(name, 0):g} of {total.get(name, 0):g} are free"
            for name, count in needs.items()
            if count
        )

    def _resources_per_cell(
        self, device: str, gpus: float | None, cpus: float | None
    ) -> dict[str, float]:
        """What a cell takes: a GPU if the cluster has any, unless another number is given."""
        available = self._ray.cluster_resources().get("GPU", 0)
        if device == "cuda" and not available and gpus is None:
            raise UserError(
                "device='cuda': the Ray cluster has no GPU now; use device='cpu', or set "
                "gpus_per_cell to 1 to wait for one"
            )
        count = gpus if gpus is not None else float(available > 0)
        return {"num_gpus": 0 if device == "cpu" else count, "num_cpus": cpus or 1}


def _connect(address: str) -> tuple[Any, bool]:
    """Ray, and whether this call connected to it (and `close` must disconnect)."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise UserError("running cells on Ray needs it: pip install 'retouch[ray]'") from None
    if ray.is_initialized():
        return ray, False
    try:
        # Ray puts the current folder first on the path of its workers; there is no module in /.
        with safe_path(), chdir("/"), warnings.catch_warnings(action="ignore"):
            ray.init(
                address=None if address == "ray" else address,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
    except (ConnectionError, RuntimeError, ValueError) as why:
        reason = " ".join(str(why).split())[-300:] or type(why).__name__
        raise UserError(
            f"cannot connect to a Ray cluster at {address} ({reason}). Is it running, is that its "
            "client port, and if it needs a token, are RAY_AUTH_MODE and RAY_AUTH_TOKEN set?"
        ) from None
    return ray, True


def _worker_function() -> Callable[..., tuple[str, Any]]:
    """The function that Ray sends to workers by value.

    It explains what is wrong where retouch is missing or has another version.
    """

    def work(job: bytes, versions: dict[str, str], *mailbox: Any) -> tuple[str, Any]:
        import pickle
        import platform

        try:
            import torch

            from retouch.version import VERSION
        except ImportError as why:
            return (
                f"a Ray worker on {platform.node()} lacks retouch ({why}); install it there",
                None,
            )
        installed = {"retouch": VERSION, "torch": torch.__version__}
        for name, version in versions.items():
            if installed[name] != version:
                return (
                    f"a Ray worker on {platform.node()} has {name} {installed[name]}, this machine "
                    f"has {version}; results would not be comparable: install the same on both",
                    None,
                )
        return "", pickle.dumps(pickle.loads(job)(*mailbox))

    return work


def _unpack(answer: tuple[str, Any]) -> Any:
    """What the worker function returned; raises its problem, if there is one."""
    problem, content = answer
    if problem:
        raise UserError(problem)
    return pickle.loads(content)


def _mailbox_class() -> type:
    """The actor in which workers leave their progress."""

    class Mailbox:
        def __init__(self) -> None:
            self._events: list[bytes] = []

        def put(self, event: bytes) -> None:
            self._events.append(event)

        def take(self) -> list[bytes]:
            events, self._events = self._events, []
            return events

    return Mailbox
