"""Several processes that learn together, as torchrun starts them, but by forking: in no time."""

import multiprocessing
import os
import socket
from collections.abc import Callable
from contextlib import nullcontext, suppress
from itertools import cycle
from multiprocessing.connection import Connection
from typing import Any

import torch

from retouch.distributed import collectives
from retouch.distributed.rendezvous import process_group

PATIENCE = 120
"""Seconds that a process may say nothing."""


def together(world: int, what: Callable[..., Any], *about: Any) -> list[Any]:
    """What each process returns, in order; an exception of one is the test's.

    No tensors: torch would hand them over in memory that ends with the process.
    """
    found = together_or_lost(world, what, *about)
    errors = [each for each in found if isinstance(each, BaseException)]
    first = [error for error in errors if not isinstance(error, collectives.RankLost)] or errors
    if first:
        raise first[0]
    return found


def together_or_lost(
    world: int, what: Callable[..., Any], *about: Any, join: bool = True
) -> list[Any]:
    """The same, with an exception in the place of what a process would have returned.

    Without `join` they are only started together. One that says nothing for too long is killed.
    """
    port = free_port()
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(world)]
    processes = [
        context.Process(target=_one, args=(rank, world, port, pipe[1], join, what, about))
        for rank, pipe in enumerate(pipes)
    ]
    for process, (_, end) in zip(processes, pipes, strict=True):
        process.start()
        end.close()
    found = [_heard(pipe) for pipe, _ in pipes]
    for process, said in zip(processes, found, strict=True):
        if isinstance(said, TimeoutError):
            process.kill()
        process.join(30)
    return found


def free_port() -> int:
    """One that neither an outgoing connection nor another worker of pytest takes meanwhile."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    for port in _ports:
        with socket.socket() as place, suppress(OSError):
            place.bind(("127.0.0.1", port + 2000 * worker))
            return port + 2000 * worker
    raise AssertionError("no free port")


_ports = cycle(range(20000, 22000))


def _heard(pipe: Connection) -> Any:
    try:
        return pipe.recv() if pipe.poll(PATIENCE) else TimeoutError("a process said nothing")
    except EOFError:
        return collectives.RankLost("it was killed")


def _one(
    rank: int,
    world: int,
    port: int,
    pipe: Connection,
    join: bool,
    what: Callable[..., Any],
    about: Any,
) -> None:
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_RANK": str(rank)}
    os.environ |= {**where, "RANK": str(rank), "WORLD_SIZE": str(world)}
    torch.set_num_threads(1)  # at once: torch replaces its threads, and two must not do so together
    try:
        with process_group("cpu") if join else nullcontext():
            pipe.send(what(*about))
    except BaseException as why:
        pipe.send(why)
    finally:
        pipe.close()
        os._exit(0)
