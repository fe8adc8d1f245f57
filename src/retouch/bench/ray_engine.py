"""Cells on a Ray cluster: Ray finds the machine, one GPU or a share of its processor for each.

Workers need the same retouch installed. Where a worker sees the result folder it writes there, and
a cell whose worker died goes on from its checkpoint; elsewhere it runs in a folder of its own and
sends the small files of the finished cell back.
"""

import logging
import os
import pickle
import uuid
import warnings
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from retouch.bench.cell import Cell
from retouch.bench.engines import Engine, Failed, Finished, Listener, WorkerLost
from retouch.bench.remote import SEEN, RemoteJob, RemoteResult
from retouch.errors import UserError
from retouch.files import write_atomically
from retouch.version import VERSION

if TYPE_CHECKING:
    from retouch.bench.runner import Bench

log = logging.getLogger("retouch")

POLL = 0.5  # seconds between two looks at the news
PATIENCE = 30.0  # seconds that cells have to save where they are

VERSIONS = {"retouch": VERSION, "torch": torch.__version__}


class RayEngine(Engine):
    """As many cells at a time as the cluster has room for."""

    here = False

    def __init__(
        self,
        address: str = "ray",
        jobs: int | None = None,
        device: str = "auto",
        gpus: float | None = None,
        cpus: float | None = None,
    ) -> None:
        if device not in ("auto", "cuda", "cpu"):
            raise UserError(f"--device {device}: Ray chooses the GPU; say auto, cuda or cpu")
        self.size = jobs or inf
        self._ray, self._began = _connect(address)
        self._needs = self._resources(device, gpus, cpus)
        self._remote = self._ray.remote(max_retries=0, **self._needs)(_by_value())
        self._mail = self._ray.remote(num_cpus=0)(_mailbox()).remote()
        self._token = uuid.uuid4().hex
        self._busy: dict[Any, tuple[Bench, Cell]] = {}
        self._seen: Path | None = None

    @property
    def busy(self) -> int:
        return len(self._busy)

    def ask(self, question: Callable[[], Any]) -> Any:
        """What a worker answers: what suits its machine is not what suits this one."""
        ref = self._remote.remote(pickle.dumps(question), VERSIONS)
        while not self._ray.wait([ref], timeout=PATIENCE)[0]:
            log.warning("waiting for a Ray worker with room for a cell (%s)", self._room())
        return self._open(self._ray.get(ref))

    def start(self, bench: "Bench", cell: Cell) -> None:
        out = bench.out.absolute()
        if self._seen is None:
            self._seen = out / SEEN
            write_atomically(self._seen, self._token)
        errand = RemoteJob(replace(bench, out=out), cell, self._token, int(self._needs["num_cpus"]))
        ref = self._remote.remote(pickle.dumps(errand), VERSIONS, self._mail)
        self._busy[ref] = bench, cell

    def wait(self, tell: Listener) -> list[Finished | Failed | WorkerLost]:
        ready, _ = self._ray.wait(list(self._busy), num_returns=1, timeout=POLL)
        try:
            for news in self._ray.get(self._mail.take.remote(), timeout=10 * POLL):
                tell(pickle.loads(news))
        except self._ray.exceptions.RayError:
            pass  # news are not needed; the ends of cells come another way
        return [self._end(ref) for ref in ready]

    def _end(self, ref: Any) -> Finished | Failed | WorkerLost:
        bench, cell = self._busy.pop(ref)
        errors = self._ray.exceptions
        try:
            sent: RemoteResult = self._open(self._ray.get(ref))
        except UserError as why:
            return Failed(cell, str(why))
        except errors.RayTaskError as why:
            return Failed(cell, f"{type(why.cause).__name__}: {why.cause}", str(why))
        except errors.RayError as why:
            return WorkerLost(cell, f"its worker died ({str(why).strip().splitlines()[0]})")
        sent.put(cell.folder(bench.out))
        return sent.end

    def _open(self, answer: tuple[str, Any]) -> Any:
        problem, content = answer
        if problem:
            raise UserError(problem)
        return pickle.loads(content)

    def close(self, tell: Listener) -> None:
        left = list(self._busy)
        super().close(tell)
        try:
            for ref in left:
                self._ray.cancel(ref)
            if left:
                self._ray.wait(left, num_returns=len(left), timeout=PATIENCE)
        finally:
            self._busy.clear()
            if self._seen is not None:
                self._seen.unlink(missing_ok=True)
            self._ray.kill(self._mail)
            if self._began:
                self._ray.shutdown()

    def _room(self) -> str:
        free, there = self._ray.available_resources(), self._ray.cluster_resources()
        told = [
            f"it takes {wanted:g} {name}, {free.get(name, 0):g} of {there.get(name, 0):g} are free"
            for name, wanted in (("GPU", self._needs["num_gpus"]), ("CPU", self._needs["num_cpus"]))
            if wanted
        ]
        return "; ".join(told)

    def _resources(self, device: str, gpus: float | None, cpus: float | None) -> dict[str, float]:
        """What a cell takes; a GPU where there are some, unless another number is asked for."""
        there = self._ray.cluster_resources().get("GPU", 0)
        if device == "cuda" and not there and gpus is None:
            raise UserError(
                "--device cuda: the Ray cluster has no GPU now; say --device cpu, or "
                "--gpus-per-cell 1 to wait for one"
            )
        wanted = gpus if gpus is not None else float(there > 0)
        return {"num_gpus": 0 if device == "cpu" else wanted, "num_cpus": cpus or 1}


def _connect(address: str) -> tuple[Any, bool]:
    """Ray, and whether this process started or joined it (and has to leave)."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise UserError("--on ray needs Ray: pip install 'retouch[ray]'") from None
    if ray.is_initialized():
        return ray, False
    try:
        where = None if address == "ray" else address
        with warnings.catch_warnings(action="ignore"):
            ray.init(address=where, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as why:
        said = " ".join(str(why).split())[-300:] or type(why).__name__
        raise UserError(
            f"--on {address}: no Ray cluster lets us in there ({said}). Does it run, is that its "
            "client port, and if it wants a token, are RAY_AUTH_MODE and RAY_AUTH_TOKEN set?"
        ) from None
    return ray, True


def _by_value() -> Callable[..., tuple[str, Any]]:
    """The function that workers are sent: it must say it well where retouch is another or none."""

    def work(errand: bytes, wanted: dict[str, str], *mail: Any) -> tuple[str, Any]:
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
        there = {"retouch": VERSION, "torch": torch.__version__}
        for name, version in wanted.items():
            if there[name] != version:
                return (
                    f"a Ray worker on {platform.node()} has {name} {there[name]}, this machine has "
                    f"{version}; results would not be comparable: install the same on both",
                    None,
                )
        return "", pickle.dumps(pickle.loads(errand)(*mail))

    return work


def _mailbox() -> type:
    """Where workers leave their news."""

    class Mailbox:
        def __init__(self) -> None:
            self._news: list[bytes] = []

        def put(self, news: bytes) -> None:
            self._news.append(news)

        def take(self) -> list[bytes]:
            news, self._news = self._news, []
            return news

    return Mailbox
