"""How several processes, one a device, come together.

Whoever starts them (`torchrun`, `accelerate launch`, SLURM) says by `RANK`, `WORLD_SIZE`,
`LOCAL_RANK`, `MASTER_ADDR` and `MASTER_PORT` who is who.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from retouch.distributed import collectives, launched_world_size
from retouch.errors import UserError

TIMEOUT = timedelta(minutes=10)
"""How long the others wait for one that computes; one that is gone is noticed at once."""


@contextmanager
def process_group(device: str = "auto") -> Iterator[str]:
    """While this lasts, the processes that were started together work together.

    Gives the device to compute on: of several GPUs each process gets its own. Where a single
    process was started, that is the one that was asked for.
    """
    if launched_world_size() < 2:
        yield device
        return
    own = rank_device(device)
    there = dist.is_initialized()
    if not there:
        _meet(own)
    collectives.begin(own)
    try:
        yield str(own)
        with collectives.rank0_first():  # which may have pages to write while the others are done
            pass
        collectives.all_reduce_scalar(
            0
        )  # the first one leaves when all have heard that: it is the one who tells
    finally:
        collectives.end()
    if not there:
        dist.destroy_process_group()


def _meet(own: torch.device) -> None:
    cuda = own.type == "cuda"
    if cuda:
        torch.cuda.set_device(own)
    try:
        dist.init_process_group("nccl" if cuda else "gloo", timeout=TIMEOUT)
    except (RuntimeError, ValueError) as why:
        place = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise UserError(
            f"the {launched_world_size()} processes of this job could not meet at {place} "
            f"({collectives.one_line(why)}); start them with torchrun, or set RANK, LOCAL_RANK, "
            "MASTER_ADDR and MASTER_PORT as it does"
        ) from None


def rank_device(asked: str) -> torch.device:
    """The processor, or the GPU of this process."""
    if asked == "cpu" or (asked == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if asked not in ("auto", "cuda"):
        raise UserError(
            f"--device {asked}: each of {launched_world_size()} processes takes a GPU of its "
            "own; leave --device out, or say cpu"
        )
    number = int(os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0")))
    if number >= (there := torch.cuda.device_count()):
        raise UserError(
            f"process {number + 1} on {socket.gethostname()} finds no GPU of its own: torch sees "
            f"{there} there; start one process a GPU (--nproc-per-node {there}), or say "
            "--device cpu"
        )
    return torch.device("cuda", number)
