"""Stop a run when it is told to, at a safe point."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from retouch.distributed import collectives
from retouch.train.checkpoint import RunRecord

GRACE = 20.0
"""Seconds that several processes have to reach a safe point together; torchrun kills after 30."""


@contextmanager
def graceful_interrupt(record: RunRecord, resumes: bool) -> Iterator[None]:
    """The first Ctrl-C finishes the step and saves; the second stops at once.

    Where several processes learn together, whoever started them tells each of them, by SIGTERM or
    again by SIGINT, when one has failed or all shall end: they stop at the same step. If one of
    them is gone they never reach it, and give up.
    """
    if not resumes or threading.current_thread() is not threading.main_thread():
        yield
        return
    if collectives.world_size() > 1:
        with _impatient():
            yield from _heeding(record, (signal.SIGINT, signal.SIGTERM), "")
    else:
        yield from _heeding(record, (signal.SIGINT,), "; Ctrl-C again stops at once")


def _heeding(record: RunRecord, signals: tuple[signal.Signals, ...], more: str) -> Iterator[None]:
    def stop(number: int, frame: Any) -> None:
        record.stop = True
        for each in signals:
            signal.signal(each, before[each] if more else signal.SIG_IGN)
        if collectives.is_rank0():
            sys.stderr.write(f"\nstopping at the next safe point{more}\n")

    before = {each: signal.signal(each, stop) for each in signals}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def _impatient() -> Iterator[None]:
    """End this process if it was told to stop and cannot.

    A process that waits for another one does not even get to see the signal, so a thread does.
    """
    told, tell = socket.socketpair()
    tell.setblocking(False)
    over = threading.Event()

    def wait() -> None:
        if told.recv(1) and not over.wait(GRACE):
            sys.stderr.write(
                f"error: told to stop, and the other processes did not answer for {GRACE:g} s, so "
                "one of them ended. The same command goes on at the last checkpoint\n"
            )
            sys.stderr.flush()
            os._exit(1)

    before = signal.set_wakeup_fd(tell.fileno(), warn_on_full_buffer=False)
    thread = threading.Thread(target=wait, name="impatient", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        signal.set_wakeup_fd(before)
        tell.close()
        thread.join()
        told.close()
