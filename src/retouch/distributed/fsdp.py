"""Weights that stand still, divided over the processes that learn together.

Each process holds a part of them. torch's FSDP2 brings the parts of a block together where they are
needed, in the forward and in the backward pass, and lets them go again. What a method may move
stays whole in every process: whoever selects, moves or stores it knows nothing of this.

While it lasts all processes must go through the blocks equally often, in the same order.
"""

import copy
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from retouch.distributed import collectives
from retouch.errors import UserError

Parameters = Mapping[str, nn.Parameter]


def shardable_modules(
    model: nn.Module, towers: Iterable[Sequence[str]], keep: Collection[str]
) -> dict[str, nn.Parameter]:
    """The matrices in the blocks of these towers, by name, but for those to keep whole.

    Biases and norms are not worth it, and a matrix that stands in two places must stay one.
    """
    places = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    found = {}
    for block in (name for tower in towers for name in tower):
        for inner, module in model.get_submodule(block).named_modules(prefix=block):
            for last, parameter in module.named_parameters(recurse=False):
                name = f"{inner}.{last}"
                if _multiplies(module) and parameter.ndim > 1 and places[id(parameter)] == 1:
                    found[name] = parameter
    return {name: parameter for name, parameter in found.items() if name not in keep}


def _multiplies(module: nn.Module) -> bool:
    """Whether it uses a matrix for a product alone: half precision is then the same everywhere."""
    known = isinstance(module, nn.Linear | nn.MultiheadAttention)
    return known or type(module).__name__ == "Conv1D"


def bytes_per_rank(model: nn.Module, apart: Parameters, world: int) -> int:
    """Bytes of a model's weights that each of so many processes holds, if these are divided."""
    whole = sum(p.nbytes for p in model.parameters()) - sum(p.nbytes for p in apart.values())
    return whole + sum(_rows(p, world) * p.nbytes // len(p) for p in apart.values())


def _rows(parameter: Tensor, world: int) -> int:
    return -(-len(parameter) // world)


@contextmanager
def sharded(
    model: nn.Module,
    towers: Iterable[Sequence[str]],
    apart: Parameters,
    *,
    half: bool = False,
) -> Iterator[None]:
    """While this lasts, these matrices (see `divisible`) are divided; then all is as before.

    With `half` the towers compute in bfloat16, and the parts travel so. In a single process nothing
    happens. After an error the model stays divided, because the other processes may be gone.
    """
    if collectives.world_size() == 1:
        yield
        return
    if not apart:
        raise UserError(
            "the frozen weights cannot be divided: every matrix of the model's blocks may move, or "
            "it has no blocks that are known; leave --shard out"
        )
    towers = [list(tower) for tower in towers]
    mesh = _mesh(next(iter(apart.values())).device)
    blocks = {name: model.get_submodule(name) for tower in towers for name in tower}
    for name, block in blocks.items():
        model.set_submodule(name, _divide(block, _inside(apart, name), mesh, half))
    _acquaint([[model.get_submodule(name) for name in tower] for tower in towers], mesh)
    yield
    for name, block in blocks.items():
        parts = dict(model.get_submodule(name).named_parameters())
        for inner, parameter in _inside(apart, name).items():
            parameter.data = _joined(parts[inner])
        model.set_submodule(name, block)


def _inside(apart: Parameters, block: str) -> dict[str, nn.Parameter]:
    """Of these parameters those in a block, by their names there."""
    start = f"{block}."
    return {n.removeprefix(start): p for n, p in apart.items() if n.startswith(start)}


def _mesh(device: torch.device) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device.type, (collectives.world_size(),))


def _divide(block: nn.Module, apart: Parameters, mesh: Any, half: bool) -> Any:
    """A copy of a block that holds a part of these parameters; all else is the block's own.

    The block itself loses their memory, and gets it back when they are joined.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    own: dict[int, Any] = {id(t): t for t in (*block.parameters(), *block.buffers())}
    for parameter in apart.values():
        own[id(parameter)] = nn.Parameter(parameter.data, requires_grad=False)
        parameter.data = parameter.data.new_empty(0)
    part: Any = copy.deepcopy(block, own)
    whole = {p for name, p in part.named_parameters() if name not in apart}
    kind = MixedPrecisionPolicy(torch.bfloat16 if half else None, cast_forward_inputs=False)
    fully_shard(part, mesh=mesh, mp_policy=kind, ignored_params=whole)
    part.set_custom_all_gather(_Gather())
    return part


class _Gather:
    """How FSDP brings parts together: as everything travels here, counted, with plain errors."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False
    ) -> None:
        collectives.all_gather(output_tensor, input_tensor, "weights")


class _Together(nn.ModuleList):
    """All blocks in one module, which FSDP must have seen before it sees one of them."""

    def forward(self) -> None:
        pass


def _acquaint(towers: Sequence[Sequence[Any]], mesh: Any) -> None:
    """Let a GPU fetch the next block while it computes one; FSDP knows the way back by itself."""
    from torch.distributed.fsdp import fully_shard

    for tower in towers:
        for block, following in pairwise(tower):
            block.set_modules_to_forward_prefetch([following])
    together = _Together([block for tower in towers for block in tower])
    fully_shard(together, mesh=mesh)
    together()


def _joined(part: Any) -> Tensor:
    """A whole tensor again, from the rows that each process has; the part's memory is freed."""
    rows = _rows(part, collectives.world_size())
    local: Tensor = part.to_local()
    mine = local.new_zeros((rows, *part.shape[1:]))
    mine[: len(local)] = local
    local.untyped_storage().resize_(0)  # others, FSDP among them, may still hold on to the part
    whole = local.new_empty((rows * collectives.world_size(), *part.shape[1:]))
    collectives.all_gather(whole, mine, "joining")
    return whole if len(whole) == len(part) else whole[: len(part)].clone()
