"""Run a function on several ranks, as torchrun starts them, but by forking, which is fast."""

import gc
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

TIMEOUT = 120
"""Seconds until a rank that returns nothing is killed."""


def run_ranks(num_ranks: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """What each rank returns, in order; an exception on one is raised here.

    Do not return tensors: torch would share their memory, which ends with the process.
    """
    results = run_ranks_or_errors(num_ranks, function, *args)
    errors = [result for result in results if isinstance(result, BaseException)]
    causes = [error for error in errors if not isinstance(error, collectives.RankLost)] or errors
    if causes:
        raise causes[0]
    return results


def run_ranks_or_errors(
    num_ranks: int, function: Callable[..., Any], *args: Any, join: bool = True
) -> list[Any]:
    """What each rank returns, or the exception that it raised.

    Without `join` the processes are started, but do not form a process group.
    """
    port = free_port()
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(num_ranks)]
    processes = [
        context.Process(
            target=_run_rank, args=(rank, num_ranks, port, sender, join, function, args)
        )
        for rank, (_, sender) in enumerate(pipes)
    ]
    for process, (_, sender) in zip(processes, pipes, strict=True):
        process.start()
        sender.close()
    results = [_receive(receiver) for receiver, _ in pipes]
    for process, result in zip(processes, results, strict=True):
        if isinstance(result, TimeoutError):
            process.kill()
        process.join(30)
    return results


def free_port() -> int:
    """A port that neither an outgoing connection nor another pytest worker takes meanwhile."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    for port in _ports:
        with socket.socket() as server, suppress(OSError):
            server.bind(("127.0.0.1", port + 2000 * worker))
            return port + 2000 * worker
    raise AssertionError("no free port")


_ports = cycle(range(20000, 22000))


def _receive(pipe: Connection) -> Any:
    try:
        return pipe.recv() if pipe.poll(TIMEOUT) else TimeoutError("a rank returned nothing")
    except EOFError:
        return collectives.RankLost("it was killed")


def _run_rank(
    rank: int,
    num_ranks: int,
    port: int,
    pipe: Connection,
    join: bool,
    function: Callable[..., Any],
    args: Any,
) -> None:
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_RANK": str(rank)}
    os.environ |= {**address, "RANK": str(rank), "WORLD_SIZE": str(num_ranks)}
    # At once: torch replaces its thread pool, and two threads must not do so at the same time.
    torch.set_num_threads(1)
    # The collector would write to every object from before the fork, and so copy all their memory.
    gc.freeze()
    try:
        with process_group("cpu") if join else nullcontext():
            pipe.send(function(*args))
    except BaseException as why:
        pipe.send(why)
    finally:
        pipe.close()
        os._exit(0)
