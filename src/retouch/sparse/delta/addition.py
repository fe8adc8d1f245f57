"""A change as numbers to add to single entries, as adapters of other libraries store it.

A delta holds bits (`xor_diff`); adapters hold differences. The difference of two floats is rounded,
so adding it does not always give the new value: from 1 to 1e-10, the nearest difference is -1,
which gives 0. Such an entry is listed twice, and the second number adds what is missing.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from retouch.arguments import check_arguments, check_fields
from retouch.errors import UserError
from retouch.sparse.finite import is_finite


@check_fields
@dataclass(frozen=True)
class Addition:
    """Numbers to add to entries of a tensor, one after the other."""

    index: Tensor
    """Flat positions; one may occur more than once."""
    values: Tensor
    """What is added at each."""

    @property
    def count(self) -> int:
        return self.index.numel()

    @check_arguments()
    def added_to(self, tensor: Tensor) -> Tensor:
        """A new tensor: `tensor` plus these numbers, each rounded to its type.

        Args:
            tensor: The tensor before the change.
        """
        flat = tensor.detach().reshape(-1)
        values = self.values.to(flat.device, flat.dtype)
        return flat.scatter_add(0, self.index.to(flat.device), values).view(tensor.shape)

    @check_arguments()
    def padded(self, count: int) -> "Addition":
        """The same change with `count` numbers: the rest add -0.0, which leaves every bit as it is.

        Args:
            count: How many numbers to return; at least as many as there are.
        """
        missing = count - self.count
        if missing < 0:
            raise UserError(f"count={count} is less than the {self.count} numbers that there are")
        index = torch.cat([self.index, self.index.new_zeros(missing)])
        return Addition(index, torch.cat([self.values, self.values.new_full((missing,), -0.0)]))


@torch.no_grad()
@check_arguments()
def addition(old: Tensor, new: Tensor) -> Addition:
    """What to add to the entries of `old` that differ from those of `new`.

    The result is `new` to the bit, if there is room for the second numbers that this may take: no
    more numbers are returned than the tensor has entries.

    Args:
        old: The tensor before the change, in a floating-point type.
        new: The tensor after it.
    """
    if old.shape != new.shape or old.dtype != new.dtype or not old.is_floating_point():
        raise UserError(
            "old and new must be tensors of one shape and one floating-point type; they are "
            f"{tuple(old.shape)} of {old.dtype} and {tuple(new.shape)} of {new.dtype}"
        )
    before, after = old.detach().reshape(-1).cpu(), new.detach().reshape(-1).cpu()
    if not (is_finite(before).all() and is_finite(after).all()):
        raise UserError("a change that holds infinite or NaN weights cannot be stored as numbers")
    index = (before != after).nonzero().squeeze(1)
    before, after = before[index], after[index]
    values = after - before
    reached = before + values
    short = (reached != after).nonzero().squeeze(1)[: old.numel() - index.numel()]
    return Addition(torch.cat([index, index[short]]), torch.cat([values, (after - reached)[short]]))
