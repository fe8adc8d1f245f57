"""Collective operations between the ranks of a job. In a single process they do nothing.

Every rank knows the whole plan of a step, since everything random follows from the seed and the
position in the run. It reads and encodes its own slice, and the slices are put together here. The
rest of the code never asks how many ranks there are.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from hashlib import sha256
from time import monotonic, sleep
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from retouch.errors import UserError

BUCKET_BYTES = 64 * 2**20
"""How much is reduced at a time: many small tensors are sent as one."""
ERROR_REPORT_SECONDS = 5.0
"""How long rank 0 waits for others that may be about to report the same error."""
traffic: Counter[str] = Counter()
"""Bytes that this rank has sent so far, by purpose, as a ring algorithm sends them."""

_device: torch.device | None = None  # of tensors in collectives; None in a single process
_rank0_first_calls = 0
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class RankLost(UserError):
    """Another rank of the job ended, or cannot be reached."""


def begin(device: torch.device) -> None:
    """From now on collectives involve all ranks, with tensors on this kind of device."""
    global _device
    _device = device


def end() -> None:
    """From now on this process is alone."""
    global _device
    _device = None


def collective_device() -> torch.device | None:
    """Where tensors must be to take part in a collective; None in a single process."""
    return _device


def world_size() -> int:
    """How many ranks work together."""
    return 1 if _device is None else dist.get_world_size()


def rank() -> int:
    """The number of this process, from 0."""
    return 0 if _device is None else dist.get_rank()


def is_rank0() -> bool:
    """Whether this process is the one that prints and writes."""
    return rank() == 0


def rank_slice(count: int, rank_number: int | None = None) -> slice:
    """This rank's slice of `count` items (or another rank's); sizes differ by at most one."""
    number = rank() if rank_number is None else rank_number
    size, remainder = divmod(count, world_size())
    start = number * size + min(number, remainder)
    return slice(start, start + size + (number < remainder))


def largest_rank_slice(count: int) -> int:
    """The size of the largest rank's slice of `count` items."""
    return -(-count // world_size())


def run_collective(operation: Callable[..., Any], *args: Any) -> None:
    """Call an operation of torch.distributed; if another rank is gone, raise RankLost."""
    try:
        operation(*args)
    except RuntimeError as why:
        raise RankLost(
            f"another process of this job ended, or cannot be reached ({short_message(why)}); if "
            "it reported an error, that is shown here too. Run the same command again to continue "
            "where the run stopped"
        ) from None


def count_traffic(purpose: str, tensor: Tensor, rounds: int) -> None:
    """Add up bytes sent: in a ring, each rank sends all but its own part in every round."""
    size = tensor.numel() * tensor.element_size()
    traffic[purpose] += rounds * size * (world_size() - 1) // world_size()


def short_message(why: BaseException) -> str:
    """The first sentence of torch's error, without its source location."""
    return str(why).partition("] ")[2].partition(". ")[0] or str(why).partition("\n")[0]


def broadcast(tensors: Iterable[Tensor]) -> None:
    """Overwrite tensors, in place, with those of rank 0."""
    device = collective_device()
    if device is None:
        return
    for tensor in tensors:
        sent = tensor.detach().to(device).contiguous()
        run_collective(dist.broadcast, sent, 0)
        tensor.detach().copy_(sent)


def broadcast_str(compute: Callable[[], str]) -> str:
    """The result of `compute` on rank 0, on all ranks; a UserError there is raised on all."""
    if collective_device() is None:
        return compute()
    packet: list[Any] = ["", ""]
    if is_rank0():
        try:
            packet = ["", compute()]
        except UserError as why:
            _broadcast_json(["error", [why.message, why.argument]])
            raise
    kind, content = _broadcast_json(packet)
    if kind:
        message, argument = content
        raise UserError(message, argument=argument)
    return str(content)


def broadcast_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of rank 0, on the CPU; those that other ranks pass are ignored."""
    device = collective_device()
    if device is None:
        return dict(tensors)
    specs = [(n, list(t.shape), str(t.dtype).rpartition(".")[2]) for n, t in tensors.items()]
    received = {}
    for name, shape, dtype in _broadcast_json(specs):
        source = tensors[name] if is_rank0() else torch.empty(shape, dtype=getattr(torch, dtype))
        sent = source.detach().to(device, copy=True).contiguous()
        run_collective(dist.broadcast, sent, 0)
        received[name] = sent.cpu()
    return received


def _broadcast_json(value: Any) -> Any:
    """A JSON value from rank 0 to all ranks."""
    device = collective_device()
    data = json.dumps(value).encode()
    size = torch.tensor(len(data), device=device)
    run_collective(dist.broadcast, size, 0)
    buffer = torch.zeros(int(size), dtype=torch.uint8, device=device)
    if is_rank0():
        buffer.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    run_collective(dist.broadcast, buffer, 0)
    return json.loads(bytes(buffer.cpu().numpy()))


def gather(rows: Tensor, count: int, purpose: str = "features") -> Tensor:
    """The rows of all ranks, in order; every rank passes its `rank_slice` of `count` rows.

    Differentiable: the gradients of a row are summed over all ranks and returned to the rank that
    passed it.
    """
    if collective_device() is None:
        return rows
    gathered: Tensor = _Gather.apply(rows, count, purpose)  # type: ignore[no-untyped-call]
    return gathered


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, count: int, purpose: str) -> Tensor:
        return _gather_slices(rows, count, purpose)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor, None, None]:
        return reduce_scatter(grad_outputs[0]), None, None


def _gather_slices(rows: Tensor, count: int, purpose: str) -> Tensor:
    """All-gather needs equal shapes: pad every slice to the largest, then cut the padding off."""
    padded_size = largest_rank_slice(count)
    padded = rows.new_zeros((padded_size, *rows.shape[1:]))
    padded[: len(rows)] = rows
    gathered = rows.new_empty((world_size() * padded_size, *rows.shape[1:]))
    all_gather(gathered, padded, purpose)
    slices = [rank_slice(count, number) for number in range(world_size())]
    starts = [number * padded_size for number in range(world_size())]
    return torch.cat(
        [
            gathered[start : start + s.stop - s.start]
            for start, s in zip(starts, slices, strict=True)
        ]
    )


def all_gather(output: Tensor, local: Tensor, purpose: str) -> None:
    """Fill `output` with the `local` tensors of all ranks, which have equal shapes, in order."""
    run_collective(_all_gather, output, local)
    count_traffic(purpose, output, 1)


def reduce_scatter(tensor: Tensor) -> Tensor:
    """This rank's slice of the sum of `tensor` over all ranks."""
    if collective_device() is None:
        return tensor
    count, padded_size = len(tensor), largest_rank_slice(len(tensor))
    padded = tensor.new_zeros((world_size() * padded_size, *tensor.shape[1:]))
    for number in range(world_size()):
        part = rank_slice(count, number)
        start = number * padded_size
        padded[start : start + part.stop - part.start] = tensor[part]
    local = tensor.new_empty((padded_size, *tensor.shape[1:]))
    run_collective(_reduce_scatter, local, padded)
    count_traffic("features", padded, 1)
    part = rank_slice(count)
    return local[: part.stop - part.start]


def all_reduce(tensors: Iterable[Tensor], purpose: str = "gradients") -> None:
    """Replace each tensor by its sum over all ranks, in place; small ones are sent together."""
    if collective_device() is None:
        return
    for bucket in _buckets(tensors):
        flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
        run_collective(dist.all_reduce, flat)
        count_traffic(purpose, flat, 2)
        parts = flat.split([tensor.numel() for tensor in bucket])
        for tensor, part in zip(bucket, parts, strict=True):
            tensor.copy_(part.view_as(tensor))


def _buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Group consecutive tensors of one dtype, up to the bucket size."""
    bucket: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if bucket and (size >= BUCKET_BYTES or tensor.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += tensor.numel() * tensor.element_size()
    if bucket:
        yield bucket


def all_reduce_scalar(value: float) -> float:
    """The sum of a number over all ranks."""
    device = collective_device()
    if device is None:
        return value
    total = torch.tensor(value, dtype=torch.float64, device=device)
    run_collective(dist.all_reduce, total)
    return float(total)


def any_rank(flag: bool) -> bool:
    """Whether the flag is set on any rank; the same answer on all."""
    return all_reduce_scalar(float(flag)) > 0


@contextmanager
def rank0_first() -> Iterator[None]:
    """Run the block on rank 0 first; the other ranks wait for its end, however long it takes."""
    global _rank0_first_calls
    if collective_device() is None:
        yield
        return
    _rank0_first_calls += 1
    store, key = _store(), f"rank0_first:{_rank0_first_calls}"
    if not is_rank0():
        run_collective(store.wait, [key], timedelta(days=7))
    try:
        yield
    finally:
        if is_rank0():
            store.set(key, "done")


def reports_error(message: str) -> bool:
    """Whether this rank should report an error: an error on several ranks is reported once.

    Rank 0 may host the store, and the count is lost when it exits; so it waits a little for other
    ranks that may be about to see the same error.
    """
    if collective_device() is None:
        return True
    try:
        store = _store()
        key = f"error:{sha256(message.encode()).hexdigest()}"
        earlier_reports = store.add(key, 1) - 1
        deadline = monotonic() + ERROR_REPORT_SECONDS
        while is_rank0() and store.add(key, 0) < world_size() and monotonic() < deadline:
            sleep(0.01)
        return bool(earlier_reports == 0)
    except RuntimeError:  # the rank that hosts the store is gone
        return True


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()
