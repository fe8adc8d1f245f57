"""Signals: stop a run cleanly on Ctrl-C, or when torchrun ends the job."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from retouch.distributed import collectives
from retouch.train.run_folder.record import RunRecord

GRACE = 20.0
"""Seconds that the ranks have to stop at the same step; torchrun kills them after 30."""


@contextmanager
def graceful_interrupt(record: RunRecord, resumable: bool) -> Iterator[None]:
    """The first Ctrl-C finishes the step and saves a checkpoint; the second stops at once.

    Where there are several ranks, their launcher sends SIGTERM or SIGINT to each of them when one
    has failed or the job shall end, and they stop at the same step. Where a rank is gone they never
    reach it, and exit after `GRACE` seconds.

    Args:
        record: Its `stop` is set by the signal.
        resumable: Whether the run has a folder; otherwise signals are left alone.
    """
    if not resumable or threading.current_thread() is not threading.main_thread():
        yield
        return
    if collectives.world_size() > 1:
        with _exit_if_stuck():
            yield from _stop_on(record, (signal.SIGINT, signal.SIGTERM), "")
    else:
        yield from _stop_on(record, (signal.SIGINT,), "; Ctrl-C again stops at once")


def _stop_on(record: RunRecord, signals: tuple[signal.Signals, ...], hint: str) -> Iterator[None]:
    """Set `record.stop` on the first signal; ignore later ones, unless there is a `hint`."""

    def stop(number: int, frame: Any) -> None:
        record.stop = True
        for name in signals:
            signal.signal(name, previous[name] if hint else signal.SIG_IGN)
        if collectives.is_rank0():
            sys.stderr.write(f"\nstopping after this step{hint}\n")

    previous = {name: signal.signal(name, stop) for name in signals}
    try:
        yield
    finally:
        for name, handler in previous.items():
            signal.signal(name, handler)


@contextmanager
def _exit_if_stuck() -> Iterator[None]:
    """Exit if a signal came and this process does not stop within `GRACE` seconds.

    While a process waits in a collective, Python runs no signal handler, so a thread waits for the
    byte that the interpreter writes on a signal.
    """
    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    ended = threading.Event()

    def wait() -> None:
        if receiver.recv(1) and not ended.wait(GRACE):
            sys.stderr.write(
                f"error: told to stop, but another process did not answer for {GRACE:g} s and "
                "has probably ended. The run can be resumed at its last checkpoint\n"
            )
            sys.stderr.flush()
            os._exit(1)

    previous = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    thread = threading.Thread(target=wait, name="exit-if-stuck", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        signal.set_wakeup_fd(previous)
        sender.close()
        thread.join()
        receiver.close()
