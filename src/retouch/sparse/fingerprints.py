"""A fingerprint names exactly these weights: SHA-256 over names, types, shapes and bits."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from retouch.arguments import check_arguments
from retouch.errors import UserError
from retouch.process.cuda_streams import thread_pool
from retouch.sparse.storage import sharing_memory

Group = Sequence[str]
"""Names of tensors that share memory."""
_PARALLEL_FROM = 2**24  # bytes
_THREADS = 4  # more would starve the other threads of a busy run


@check_arguments()
def fingerprint(model: nn.Module) -> str:
    """A name for exactly these weights: the digest of a model's weights and buffers.

    Args:
        model: Any torch module.
    """
    return digest(model.state_dict())


@check_arguments()
def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over the names, types, shapes and bits of all tensors.

    It is a hash of per-tensor hashes, so that the tensors of a large model are read in parallel.

    Args:
        tensors: The tensors, by name.
    """
    return _combine(_digest_each(tensors))


class Digests:
    """Digests of a model that changes now and then; unchanged tensors are not read again."""

    def __init__(self) -> None:
        self._cache: dict[str, str] = {}

    def __call__(self, tensors: Mapping[str, Tensor], changed: Iterable[str]) -> str:
        """The digest of all tensors, given which of them may have changed since the last call.

        Tensors that share memory with a changed one are read again too.
        """
        unknown = {name: tensor for name, tensor in tensors.items() if name not in self._cache}
        self._cache |= _digest_each(unknown | sharing_memory(tensors, changed))
        return _combine({name: self._cache[name] for name in tensors})

    def with_others(
        self, groups: Iterable[Group], other_values: Callable[[Group], Mapping[str, Tensor]]
    ) -> str:
        """What the digest would be if some tensors had other values.

        Args:
            groups: Their names, in groups.
            other_values: Makes the tensors of a group. They are not kept, so that only a few groups
                are in memory at a time.
        """

        def digests_of(group: Group) -> dict[str, str]:
            return {name: _digest_one(tensor) for name, tensor in other_values(group).items()}

        others: dict[str, str] = {}
        with thread_pool(_THREADS) as pool:
            for part in pool.map(digests_of, groups):
                others |= part
        return _combine(self._cache | others)


def _combine(digests: Mapping[str, str]) -> str:
    lines = [f"{name} {digest}\n" for name, digest in sorted(digests.items())]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _digest_each(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    for name, tensor in tensors.items():
        if tensor.is_meta:
            raise UserError(f"{name} is on the meta device, without values; load its weights first")
    parallel = sum(tensor.nbytes for tensor in tensors.values()) > _PARALLEL_FROM
    with thread_pool(_THREADS) if parallel else nullcontext() as pool:
        digests = (pool.map if pool else map)(_digest_one, tensors.values())
        return dict(zip(tensors, digests, strict=True))


def _digest_one(tensor: Tensor) -> str:
    sha = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
    raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    sha.update(raw.numpy().data)
    return sha.hexdigest()
