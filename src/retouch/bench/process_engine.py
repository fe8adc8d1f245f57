"""Several cells at a time on this machine, each in a process of its own.

One that dies costs only its cell, which goes on from its own checkpoint. What a process prints goes
to `log.txt` in the cell's folder.
"""

import contextlib
import os
import signal
import sys
import threading
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from retouch.bench.cell import Cell
from retouch.bench.engines import Engine, Failed, Finished, Listener, News, WorkerLost
from retouch.bench.worker import attempt, logged

if TYPE_CHECKING:
    from retouch.bench.runner import Bench

LOG = "log.txt"
PATIENCE = 60.0  # seconds that a cell has to save where it is


@dataclass
class _Worker:
    process: SpawnProcess
    cell: Cell
    slot: int


class ProcessEngine(Engine):
    """So many processes; they share the processor's threads, and the GPUs one by one."""

    def __init__(self, jobs: int, device: str = "auto") -> None:
        self.size = jobs
        self._gpus = gpus_for(device)
        self._threads = max(1, torch.get_num_threads() // jobs)
        self._busy: dict[connection.Connection, _Worker] = {}

    @property
    def busy(self) -> int:
        return len(self._busy)

    def start(self, bench: "Bench", cell: Cell) -> None:
        taken = {worker.slot for worker in self._busy.values()}
        slot = next(number for number in range(int(self.size)) if number not in taken)
        gpu = self._gpus[slot % len(self._gpus)] if self._gpus else None
        folder = cell.folder(bench.out)
        folder.mkdir(parents=True, exist_ok=True)
        spawn = get_context("spawn")
        hears, says = spawn.Pipe(duplex=False)
        process = spawn.Process(
            target=_work, args=(bench, cell, says, gpu, self._threads, folder / LOG)
        )
        process.start()
        says.close()  # else its end would not be seen here
        self._busy[hears] = _Worker(process, cell, slot)

    def wait(self, tell: Listener) -> list[Finished | Failed | WorkerLost]:
        ended: list[Finished | Failed | WorkerLost] = []
        for hears in connection.wait(list(self._busy)):
            assert isinstance(hears, connection.Connection)
            said = self._hear(hears)
            if isinstance(said, News):
                tell(said)
            else:
                ended.append(said)
        return ended

    def _hear(self, hears: connection.Connection) -> News | Finished | Failed | WorkerLost:
        said: News | Finished | Failed | WorkerLost | None
        try:
            said = hears.recv()
        except (EOFError, OSError):  # it died, perhaps in the middle of a word
            said = None
        if isinstance(said, News):
            return said
        worker = self._busy.pop(hears)
        hears.close()
        worker.process.join(PATIENCE)
        worker.process.kill()  # where something in it would not end
        return said or WorkerLost(worker.cell, _death(worker.process.exitcode))

    def close(self, tell: Listener) -> None:
        """As Ctrl-C does with a single run: the first saves, the second stops at once."""
        left = [worker.process for worker in self._busy.values()]
        super().close(tell)
        try:
            for process in left:
                assert process.pid
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGINT)
            for process in left:
                process.join(PATIENCE)
        finally:
            for process in left:
                process.kill()
            self._busy.clear()


def gpus_for(device: str) -> list[str]:
    """Which GPUs to share among the processes, as CUDA_VISIBLE_DEVICES names them."""
    if device not in ("auto", "cuda"):
        return []  # the one that was named, or none
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(i) for i in range(torch.cuda.device_count())]


def _work(
    bench: "Bench",
    cell: Cell,
    says: connection.Connection,
    gpu: str | None,
    threads: int,
    log: Path,
) -> None:
    """A worker's whole life."""
    os.setpgrp()  # Ctrl-C is for the one who started it, who passes it on
    _print_to(log)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    torch.set_num_threads(threads)
    bench.on.progress = logged
    where = f"process {os.getpid()}" + (f", GPU {gpu}" if gpu is not None else "")
    code = 0
    try:
        says.send(attempt(bench, cell, says.send, where))
    except KeyboardInterrupt:
        code = 130  # it was told to stop, and has saved where it is
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # at once: nothing is left to put away, and the next cell waits for the memory


def _print_to(log: Path) -> None:
    with log.open("a") as file:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(file.fileno(), stream.fileno())


def _die_with_parent() -> None:
    """One whose grid was killed must not write where the next grid goes on."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _death(code: int | None) -> str:
    if code is None or code >= 0:
        return f"its process ended with exit code {code}"
    name = signal.Signals(-code).name
    reason = "; was there too little memory?" if -code == signal.SIGKILL else ""
    return f"its process was killed ({name}{reason})"
