"""Several cells at a time on this machine, each in a process of its own.

A process that dies costs only its cell, which resumes from its checkpoint. Its output goes to
`log.txt` in the cell's folder.
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

import torch

from retouch.bench.cell import Cell
from retouch.bench.cell_runner import CellRunner
from retouch.bench.engines.engine import Engine
from retouch.bench.engines.events import Listener, Outcome, Progress, WorkerLost
from retouch.bench.engines.worker import attempt, logged
from retouch.process.child_process import safe_path

LOG = "log.txt"
SAVE_SECONDS = 60.0
"""Seconds that an interrupted cell has to save its checkpoint."""


@dataclass
class _Worker:
    process: SpawnProcess
    cell: Cell
    slot: int


class ProcessEngine(Engine):
    """`jobs` processes that share the CPU's threads; each uses one of the GPUs."""

    def __init__(self, jobs: int, device: str = "auto") -> None:
        self.size = jobs
        self._gpus = gpus_for(device)
        self._threads = max(1, torch.get_num_threads() // jobs)
        self._workers: dict[connection.Connection, _Worker] = {}

    @property
    def busy(self) -> int:
        return len(self._workers)

    def start(self, runner: CellRunner, cell: Cell) -> None:
        used = {worker.slot for worker in self._workers.values()}
        slot = next(number for number in range(int(self.size)) if number not in used)
        gpu = self._gpus[slot % len(self._gpus)] if self._gpus else None
        folder = cell.folder(runner.out)
        folder.mkdir(parents=True, exist_ok=True)
        spawn = get_context("spawn")
        receiver, sender = spawn.Pipe(duplex=False)
        process = spawn.Process(
            target=_work, args=(runner, cell, sender, gpu, self._threads, folder / LOG)
        )
        with safe_path():
            process.start()
        sender.close()  # so that the receiver sees the end of the process
        self._workers[receiver] = _Worker(process, cell, slot)

    def wait(self, listener: Listener) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for receiver in connection.wait(list(self._workers)):
            assert isinstance(receiver, connection.Connection)
            message = self._receive(receiver)
            if isinstance(message, Progress):
                listener(message)
            else:
                outcomes.append(message)
        return outcomes

    def _receive(self, receiver: connection.Connection) -> Progress | Outcome:
        message: Progress | Outcome | None
        try:
            message = receiver.recv()
        except (EOFError, OSError):  # the process died, perhaps while sending
            message = None
        if isinstance(message, Progress):
            return message
        worker = self._workers.pop(receiver)
        receiver.close()
        worker.process.join(SAVE_SECONDS)
        worker.process.kill()  # if a thread keeps it alive
        return message or WorkerLost(worker.cell, _cause_of_death(worker.process.exitcode))

    def close(self, listener: Listener) -> None:
        """Like Ctrl-C during a single run: the first saves, the second stops at once."""
        processes = [worker.process for worker in self._workers.values()]
        super().close(listener)
        try:
            for process in processes:
                assert process.pid
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGINT)
            for process in processes:
                process.join(SAVE_SECONDS)
        finally:
            for process in processes:
                process.kill()
            self._workers.clear()


def gpus_for(device: str) -> list[str]:
    """The GPUs to divide among the processes, as CUDA_VISIBLE_DEVICES names them."""
    if device not in ("auto", "cuda"):
        return []  # a particular device, or the CPU
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]


def _work(
    runner: CellRunner,
    cell: Cell,
    sender: connection.Connection,
    gpu: str | None,
    threads: int,
    log: Path,
) -> None:
    """The main function of a worker process."""
    os.setpgrp()  # Ctrl-C goes to the parent, which passes it on
    _redirect_output(log)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    torch.set_num_threads(threads)
    runner.data.progress = logged
    where = f"process {os.getpid()}" + (f", GPU {gpu}" if gpu is not None else "")
    code = 0
    try:
        sender.send(attempt(runner, cell, sender.send, where))
    except KeyboardInterrupt:
        code = 130  # interrupted; the checkpoint is saved
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # without teardown: the next cell waits for the memory


def _redirect_output(log: Path) -> None:
    with log.open("a") as file:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(file.fileno(), stream.fileno())


def _exit_with_parent() -> None:
    """A worker whose bench was killed must not write where the next bench resumes."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _cause_of_death(code: int | None) -> str:
    if code is None or code >= 0:
        return f"its process ended with exit code {code}"
    name = signal.Signals(-code).name
    hint = "; out of memory?" if -code == signal.SIGKILL else ""
    return f"its process was killed ({name}{hint})"
