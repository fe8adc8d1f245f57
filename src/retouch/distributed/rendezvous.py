"""How several processes, one per device, form a process group.

The launcher (`torchrun`, `accelerate launch`, SLURM) tells each process its place by `RANK`,
`WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR` and `MASTER_PORT`.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from retouch.distributed import collectives, launched_world_size, launcher_number
from retouch.errors import UserError

TIMEOUT = timedelta(minutes=10)
"""How long ranks wait for one that is still computing; one that exited is noticed at once."""


@contextmanager
def process_group(device: str = "auto") -> Iterator[str]:
    """Within the block, the processes that were launched together work together.

    Yields the device to compute on: with several GPUs, each process gets its own. If a single
    process was launched, that is the device that was asked for.
    """
    if launched_world_size() < 2:
        yield device
        return
    local_device = rank_device(device)
    initialized = dist.is_initialized()
    if not initialized:
        _init_process_group(local_device)
    collectives.begin(local_device)
    try:
        yield str(local_device)
        # Rank 0 may still have pages to write, which can take longer than a collective may.
        with collectives.rank0_first():
            pass
        # Rank 0, which hosts the store, leaves only after all ranks have seen that.
        collectives.all_reduce_scalar(0)
    finally:
        collectives.end()
    if not initialized:
        dist.destroy_process_group()


def _init_process_group(device: torch.device) -> None:
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.set_device(device)
    try:
        dist.init_process_group("nccl" if cuda else "gloo", timeout=TIMEOUT)
    except (RuntimeError, ValueError) as why:
        address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise UserError(
            f"the {launched_world_size()} processes of this job could not connect at {address} "
            f"({collectives.short_message(why)}); start them with torchrun, or set RANK, "
            "LOCAL_RANK, MASTER_ADDR and MASTER_PORT as it does"
        ) from None


def rank_device(requested: str) -> torch.device:
    """The CPU, or the GPU of this process."""
    if requested == "cpu" or (requested == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if requested not in ("auto", "cuda"):
        raise UserError(
            f"device {requested}: each of {launched_world_size()} processes takes a GPU of its "
            "own; leave the device out, or use cpu"
        )
    number = launcher_number("LOCAL_RANK", default=launcher_number("RANK", default=0))
    if number >= (num_gpus := torch.cuda.device_count()):
        raise UserError(
            f"process {number + 1} on {socket.gethostname()} has no GPU of its own: torch sees "
            f"{num_gpus} there; start one process per GPU ({num_gpus} on this machine), or use "
            "the device cpu"
        )
    return torch.device("cuda", number)
