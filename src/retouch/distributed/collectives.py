"""What processes that learn together tell each other. In a single one, nothing here does anything.

Every process knows the whole plan of a step, since all that is random comes from the seed and the
place in the run; it reads and encodes its own part, and what belongs together is put together here.
The rest of the code never asks how many there are.
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

BUCKET = 64 * 2**20
"""Bytes that are added up at a time: many small tensors travel as one."""

ERROR_REPORT_SECONDS = 5.0
"""Seconds that the first process waits for others who see the same mistake."""

traffic: Counter[str] = Counter()
"""Bytes that this process has sent so far, by what they were for, as a ring of processes sends."""

_device: torch.device | None = None  # where what travels must lie; None: there is one process
_turns = 0
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class RankLost(UserError):
    """Another process of the job ended, or cannot be reached."""


def begin(device: torch.device) -> None:
    """From now on the processes that met work together, and tensors travel between such devices."""
    global _device
    _device = device


def end() -> None:
    """From now on this process is alone."""
    global _device
    _device = None


def world_size() -> int:
    """How many processes work together."""
    return 1 if _device is None else dist.get_world_size()


def rank() -> int:
    """The number of this one, from 0."""
    return 0 if _device is None else dist.get_rank()


def is_rank0() -> bool:
    """Whether this is the one that prints and writes."""
    return rank() == 0


def rank_slice(count: int, number: int | None = None) -> slice:
    """The part of so many things that is this process's (or another's), as even as can be."""
    each, more = divmod(count, world_size())
    number = rank() if number is None else number
    start = number * each + min(number, more)
    return slice(start, start + each + (number < more))


def largest_rank_slice(count: int) -> int:
    """The largest part of so many things that a process has."""
    return -(-count // world_size())


# What the processes tell each other.


def gather(rows: Tensor, count: int, what: str = "features") -> Tensor:
    """The rows of all processes, in order: each gives its part of `count`, see `own`.

    With gradient: what all processes ask of a row comes back, added up, to the one that gave it.
    """
    if _device is None:
        return rows
    found: Tensor = _Gathered.apply(rows, count, what)  # type: ignore[no-untyped-call]
    return found


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, count: int, what: str) -> Tensor:
        return _gathered(rows, count, what)

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> tuple[Tensor, None, None]:
        return reduce_scatter(slopes[0]), None, None


def _gathered(rows: Tensor, count: int, what: str) -> Tensor:
    wide = largest_rank_slice(count)
    mine = rows.new_zeros((wide, *rows.shape[1:]))
    mine[: len(rows)] = rows
    whole = rows.new_empty((world_size() * wide, *rows.shape[1:]))
    all_gather(whole, mine, what)
    parts = [rank_slice(count, number) for number in range(world_size())]
    ends = [n * wide + part.stop - part.start for n, part in enumerate(parts)]
    return torch.cat([whole[n * wide : end] for n, end in enumerate(ends)])


def all_gather(whole: Tensor, mine: Tensor, what: str) -> None:
    """Fill `whole` with what the processes have, one after the other: equally much each."""
    _travel(_all_gather, whole, mine)
    _count(what, whole, 1)


def reduce_scatter(whole: Tensor) -> Tensor:
    """Of a tensor that every process has another version of: the sum, and of that its own rows."""
    if _device is None:
        return whole
    count, wide = len(whole), largest_rank_slice(len(whole))
    filled = whole.new_zeros((world_size() * wide, *whole.shape[1:]))
    for number in range(world_size()):
        part = rank_slice(count, number)
        filled[number * wide : number * wide + part.stop - part.start] = whole[part]
    mine = whole.new_empty((wide, *whole.shape[1:]))
    _travel(_reduce_scatter, mine, filled)
    _count("features", filled, 1)
    part = rank_slice(count)
    return mine[: part.stop - part.start]


def all_reduce(tensors: Iterable[Tensor], what: str = "gradients") -> None:
    """Replace each by the sum over all processes, in place; many small ones travel as one."""
    if _device is None:
        return
    for bucket in _buckets(tensors):
        flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
        _travel(dist.all_reduce, flat)
        _count(what, flat, 2)
        parts = flat.split([tensor.numel() for tensor in bucket])
        for tensor, part in zip(bucket, parts, strict=True):
            tensor.copy_(part.view_as(tensor))


def _buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Neighbours of one kind together, until there are enough."""
    bucket: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if bucket and (size >= BUCKET or tensor.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += tensor.numel() * tensor.element_size()
    if bucket:
        yield bucket


def all_reduce_scalar(value: float) -> float:
    """The sum of a number over all processes."""
    if _device is None:
        return value
    found = torch.tensor(value, dtype=torch.float64, device=_device)
    _travel(dist.all_reduce, found)
    return float(found)


def any_rank(flag: bool) -> bool:
    """Whether it is so for any process; all get the same answer."""
    return all_reduce_scalar(float(flag)) > 0


@contextmanager
def rank0_first() -> Iterator[None]:
    """The others come here when the first process is through, however long that takes."""
    global _turns
    if _device is None:
        yield
        return
    _turns += 1
    store, key = dist.distributed_c10d._get_default_store(), f"turn:{_turns}"
    if not is_rank0():
        _travel(store.wait, [key], timedelta(days=7))
    try:
        yield
    finally:
        if is_rank0():
            store.set(key, "over")


def broadcast(tensors: Iterable[Tensor]) -> None:
    """Give all processes what the first one has, in place."""
    if _device is None:
        return
    for tensor in tensors:
        there = tensor.detach().to(_device).contiguous()
        _travel(dist.broadcast, there, 0)
        tensor.detach().copy_(there)


def broadcast_str(make: Callable[[], str]) -> str:
    """What the first process makes, known to all; if it is the user's mistake, to all as well."""
    if _device is None:
        return make()
    said: list[Any] = ["", ""]
    if is_rank0():
        try:
            said = ["", make()]
        except UserError as why:
            _shout(["error", [why.message, why.argument]])
            raise
    kind, content = _shout(said)
    if kind:
        message, argument = content
        raise UserError(message, argument=argument)
    return str(content)


def broadcast_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the first process, in main memory; what the others give is not looked at."""
    if _device is None:
        return dict(tensors)
    told = [(n, list(t.shape), str(t.dtype).rpartition(".")[2]) for n, t in tensors.items()]
    found = {}
    for name, shape, kind in _shout(told):
        here = tensors[name] if is_rank0() else torch.empty(shape, dtype=getattr(torch, kind))
        there = here.detach().to(_device, copy=True).contiguous()
        _travel(dist.broadcast, there, 0)
        found[name] = there.cpu()
    return found


def _shout(value: Any) -> Any:
    """What can be written as JSON, from the first process to all."""
    data = json.dumps(value).encode()
    size = torch.tensor(len(data), device=_device)
    _travel(dist.broadcast, size, 0)
    room = torch.zeros(int(size), dtype=torch.uint8, device=_device)
    if is_rank0():
        room.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    _travel(dist.broadcast, room, 0)
    return json.loads(bytes(room.cpu().numpy()))


def reports_error(message: str) -> bool:
    """Whether no other process has said this yet: a mistake that all see is told once.

    The count is lost with the first process, unless torchrun keeps it: that one waits a little for
    the others, who may be about to see the same.
    """
    if _device is None:
        return True
    try:
        store = dist.distributed_c10d._get_default_store()
        name = f"said:{sha256(message.encode()).hexdigest()}"
        before = store.add(name, 1) - 1
        end = monotonic() + ERROR_REPORT_SECONDS
        while is_rank0() and store.add(name, 0) < world_size() and monotonic() < end:
            sleep(0.01)
        return bool(before == 0)
    except RuntimeError:  # whoever kept count is gone
        return True


def _travel(how: Callable[..., Any], *about: Any) -> None:
    try:
        how(*about)
    except RuntimeError as why:
        raise RankLost(
            f"another process of this job ended, or cannot be reached ({one_line(why)}); if it "
            "said why, that stands here too. The same command goes on where a run stopped"
        ) from None


def one_line(why: BaseException) -> str:
    """The first sentence, without the place in torch's source."""
    return str(why).partition("] ")[2].partition(". ")[0] or str(why).partition("\n")[0]


def _count(what: str, tensor: Tensor, rounds: int) -> None:
    """In a ring each process sends all but its own part, twice where it is added up first."""
    size = tensor.numel() * tensor.element_size()
    traffic[what] += rounds * size * (world_size() - 1) // world_size()
