"""FSDP2 for frozen weights: each rank holds a shard of them.

FSDP2 gathers the shards of a block when they are needed, in the forward and in the backward pass,
and frees them again. Parameters that a method may update stay whole on every rank, so the code that
selects, updates or stores them need not know about any of this.

While weights are sharded, all ranks must run the blocks equally often, in the same order.
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


def shardable_parameters(
    model: nn.Module, towers: Iterable[Sequence[str]], keep: Collection[str]
) -> dict[str, nn.Parameter]:
    """The matrices in the blocks of these towers, by name, except those to keep whole.

    Biases and norms are too small to matter, and a tied matrix must not be duplicated.
    """
    uses = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    matrices = {}
    for block in (name for tower in towers for name in tower):
        for prefix, module in model.get_submodule(block).named_modules(prefix=block):
            for attribute, parameter in module.named_parameters(recurse=False):
                if _only_multiplies(module) and parameter.ndim > 1 and uses[id(parameter)] == 1:
                    matrices[f"{prefix}.{attribute}"] = parameter
    return {name: parameter for name, parameter in matrices.items() if name not in keep}


def _only_multiplies(module: nn.Module) -> bool:
    """Whether its matrices are used in products only, for which bfloat16 is the same everywhere."""
    known = isinstance(module, nn.Linear | nn.MultiheadAttention)
    return known or type(module).__name__ == "Conv1D"


def bytes_per_rank(model: nn.Module, sharded_parameters: Parameters, num_ranks: int) -> int:
    """Bytes of a model's weights that each of `num_ranks` ranks holds, if these are sharded."""
    total = sum(p.nbytes for p in model.parameters())
    whole = total - sum(p.nbytes for p in sharded_parameters.values())
    return whole + sum(
        _rows_per_rank(p, num_ranks) * p.nbytes // len(p) for p in sharded_parameters.values()
    )


def _rows_per_rank(parameter: Tensor, num_ranks: int) -> int:
    return -(-len(parameter) // num_ranks)


@contextmanager
def sharded(
    model: nn.Module,
    towers: Iterable[Sequence[str]],
    parameters: Parameters,
    *,
    bf16: bool = False,
) -> Iterator[None]:
    """Shard these parameters (see `shardable_parameters`) within the block, and restore them.

    In a single process this does nothing. After an error the model stays sharded, because other
    ranks may be gone.

    Args:
        model: The model; its blocks are replaced by sharded copies.
        towers: The names of each tower's blocks, in the order they run.
        parameters: What to shard, by name.
        bf16: Gather shards in bfloat16, if the towers compute in it.
    """
    if collectives.world_size() == 1:
        yield
        return
    if not parameters:
        raise UserError(
            "the frozen weights cannot be sharded: every matrix in the model's blocks may be "
            "updated, or its blocks are not known; train without sharding"
        )
    towers = [list(tower) for tower in towers]
    mesh = _device_mesh(next(iter(parameters.values())).device)
    blocks = {name: model.get_submodule(name) for tower in towers for name in tower}
    for name, block in blocks.items():
        model.set_submodule(name, _shard_block(block, _in_block(parameters, name), mesh, bf16))
    _register_towers([[model.get_submodule(name) for name in tower] for tower in towers], mesh)
    yield
    for name, block in blocks.items():
        shards = dict(model.get_submodule(name).named_parameters())
        for inner_name, parameter in _in_block(parameters, name).items():
            parameter.data = _unshard(shards[inner_name])
        model.set_submodule(name, block)


def _in_block(parameters: Parameters, block: str) -> dict[str, nn.Parameter]:
    """Those of these parameters that are in a block, by their names inside it."""
    prefix = f"{block}."
    return {n.removeprefix(prefix): p for n, p in parameters.items() if n.startswith(prefix)}


def _device_mesh(device: torch.device) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device.type, (collectives.world_size(),))


def _shard_block(block: nn.Module, parameters: Parameters, mesh: Any, bf16: bool) -> Any:
    """A copy of a block that holds shards of these parameters and shares all others.

    The parameters of the original block release their memory; `sharded` restores it at its end.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    copied: dict[int, Any] = {id(t): t for t in (*block.parameters(), *block.buffers())}
    for parameter in parameters.values():
        copied[id(parameter)] = nn.Parameter(parameter.data, requires_grad=False)
        parameter.data = parameter.data.new_empty(0)
    shard: Any = copy.deepcopy(block, copied)
    whole = {p for name, p in shard.named_parameters() if name not in parameters}
    policy = MixedPrecisionPolicy(torch.bfloat16 if bf16 else None, cast_forward_inputs=False)
    fully_shard(shard, mesh=mesh, mp_policy=policy, ignored_params=whole)
    shard.set_custom_all_gather(_AllGather())
    return shard


class _AllGather:
    """FSDP's all-gather through `collectives`: traffic is counted, a lost rank is reported."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False
    ) -> None:
        collectives.all_gather(output_tensor, input_tensor, "weights")


class _Root(nn.ModuleList):
    """All blocks in one module: FSDP must run its root module before it runs a part of it."""

    def forward(self) -> None:
        pass


def _register_towers(towers: Sequence[Sequence[Any]], mesh: Any) -> None:
    """Prefetch the next block in the forward pass; FSDP does so by itself in the backward pass."""
    from torch.distributed.fsdp import fully_shard

    for tower in towers:
        for block, following in pairwise(tower):
            block.set_modules_to_forward_prefetch([following])
    root = _Root([block for tower in towers for block in tower])
    fully_shard(root, mesh=mesh)
    root()


def _unshard(shard: Any) -> Tensor:
    """The whole tensor, from the rows that each rank has; the shard's memory is freed."""
    num_ranks = collectives.world_size()
    rows = _rows_per_rank(shard, num_ranks)
    local: Tensor = shard.to_local()
    padded = local.new_zeros((rows, *shard.shape[1:]))
    padded[: len(local)] = local
    local.untyped_storage().resize_(0)  # FSDP and others may still hold a reference to the shard
    whole = local.new_empty((rows * num_ranks, *shard.shape[1:]))
    collectives.all_gather(whole, padded, "joining")
    return whole if len(whole) == len(shard) else whole[: len(shard)].clone()
