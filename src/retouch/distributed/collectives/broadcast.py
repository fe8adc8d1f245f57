"""Send what rank 0 has to all ranks."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from retouch.distributed.collectives.world import collective_device, is_rank0, run_collective
from retouch.errors import UserError


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
