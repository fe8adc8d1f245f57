"""AdamW for chosen entries alone: no moments, no decay and no gradient for anything else."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from retouch.errors import UserError
from retouch.sparse.select import Chosen, Selection


class SparseAdamW(torch.optim.AdamW):
    """Moves the chosen entries exactly as `torch.optim.AdamW` would; all others stay as they are.

    It *is* torch's AdamW, over short flat tensors that hold the chosen entries of each parameter:
    gathered before a step and written back after it. AdamW treats every entry by itself, so it
    makes no difference that the others are missing. (With `fused=True` the processor may round the
    last few entries of a tensor differently; by default the results are equal to the bit.)

    As soon as autograd has a parameter's gradient, a hook takes the chosen entries out of it and
    frees it: no dense gradient of the model ever stands in memory. Several backward passes before
    a step add up, as usual. Schedulers, `clip_grad_norm_` and gradient scalers see the short
    tensors in `param_groups`. Call `close` when the task is over, to take the hooks off.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        selection: Selection,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        foreach: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        self._selection = selection
        self._parts = [
            _Part(parameters[name], chosen) for name, chosen in selection.items() if chosen.count
        ]
        if not self._parts:
            raise UserError("the selection is empty: nothing to train; choose a larger rate")
        entries = [part.entries for part in self._parts]
        super().__init__(
            entries, lr, betas, eps, weight_decay, foreach=foreach, fused=fused or None
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        for part in self._parts:
            part.gather()
        loss = super().step(closure)
        for part in self._parts:
            part.scatter()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """AdamW's own state, and the positions it belongs to."""
        positions = {name: chosen.index for name, chosen in self._selection.items()}
        return {**super().state_dict(), "selection": positions}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        rest = dict(state_dict)
        positions: dict[str, Tensor | None] = rest.pop("selection")
        if list(positions) != list(self._selection) or not all(
            _same(positions[name], chosen.index) for name, chosen in self._selection.items()
        ):
            raise UserError(
                "this optimiser state belongs to another selection; resume with its own"
            )
        super().load_state_dict(rest)

    def close(self) -> None:
        """Take the hooks off the model's parameters."""
        for part in self._parts:
            part.close()


class _Part:
    """One parameter and the short tensor that holds its chosen entries."""

    def __init__(self, parameter: nn.Parameter, chosen: Chosen) -> None:
        if not parameter.is_contiguous():
            raise UserError(
                "a parameter's memory is not contiguous; call .contiguous() on it first"
            )
        self.parameter = parameter.requires_grad_()
        self.index = chosen.index
        # A whole tensor needs no gathering: AdamW works on the parameter itself.
        self.entries = parameter if self.index is None else nn.Parameter(chosen.take(parameter))
        self.hook = (
            None
            if self.index is None
            else parameter.register_post_accumulate_grad_hook(self._take_gradient)
        )

    def _take_gradient(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        assert self.index is not None
        taken = parameter.grad.detach().reshape(-1).index_select(0, self.index)
        self.entries.grad = taken if self.entries.grad is None else self.entries.grad.add_(taken)
        parameter.grad = None

    def gather(self) -> None:
        if self.index is not None:
            torch.index_select(self._flat(), 0, self.index, out=self.entries.data)

    def scatter(self) -> None:
        if self.index is not None:
            self._flat().index_copy_(0, self.index, self.entries.data)

    def _flat(self) -> Tensor:
        return self.parameter.detach().view(-1)

    def close(self) -> None:
        if self.hook is not None:
            self.hook.remove()


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return torch.equal(a.to(b.device), b)
