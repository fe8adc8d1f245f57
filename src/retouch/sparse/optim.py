"""AdamW for chosen entries alone: no moments, no decay and no gradient for anything else."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from retouch.errors import UserError
from retouch.sparse.neuron_linear import train_rows_only, whole_rows
from retouch.sparse.select import Selection, SparseIndex


class SparseAdamW(torch.optim.AdamW):
    """Moves the chosen entries exactly as `torch.optim.AdamW` would; all others stay as they are.

    It *is* torch's AdamW, over short flat tensors that hold the chosen entries of each parameter:
    gathered before a step and written back after it. AdamW treats every entry by itself, so it
    makes no difference that the others are missing. (With `fused=True` the processor may round the
    last few entries of a tensor differently; by default the results are equal to the bit.)

    As soon as autograd has a parameter's gradient, a hook takes the chosen entries out of it and
    frees it: no dense gradient of the model ever stands in memory. Several backward passes before
    a step add up, as usual. Where whole rows of a linear layer are chosen (`layers`), only their
    gradient is computed in the first place. Schedulers, `clip_grad_norm_` and gradient scalers see
    the short tensors in `param_groups`. Call `close` when the task is over, to take the hooks off.
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
        layers: Mapping[str, nn.Linear] | None = None,
        foreach: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        """`layers` are those of which whole rows may be chosen; see `sparse.neuron_linear`."""
        self._selection = selection
        self._parts = [
            _Part(parameters[name], chosen, (layers or {}).get(name))
            for name, chosen in selection.items()
            if chosen.count
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
        with _in_any_order():
            for part in self._parts:
                part.scatter()
        return loss

    def weights(self) -> dict[str, Tensor]:
        """The parameters as the model uses them now, by name, with gradients to what moves."""
        names = [name for name, chosen in self._selection.items() if chosen.count]
        return {name: part.weight() for name, part in zip(names, self._parts, strict=True)}

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
                "this optimizer state belongs to another selection; resume with its own"
            )
        super().load_state_dict(rest)

    def close(self) -> None:
        """Take the hooks off the model's parameters."""
        for part in self._parts:
            part.close()


class _Part:
    """One parameter and the short tensor that holds its chosen entries."""

    def __init__(
        self, parameter: nn.Parameter, chosen: SparseIndex, layer: nn.Linear | None = None
    ) -> None:
        self.parameter = parameter.requires_grad_()
        self._chosen = chosen
        self.index = chosen.index
        self._end = ExitStack()
        # A whole tensor needs no gathering: AdamW works on the parameter itself.
        self.entries = parameter if self.index is None else nn.Parameter(chosen.gather(parameter))
        self.rows: Tensor | None = None
        if self.index is None:
            return
        if layer is not None and (rows := whole_rows(chosen)) is not None:
            self.rows = rows
            self._end.enter_context(train_rows_only(layer, rows, self.entries))
        else:
            hook = parameter.register_post_accumulate_grad_hook(self._take_gradient)
            self._end.callback(hook.remove)

    def _take_gradient(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        assert self.index is not None
        taken = parameter.grad.detach().reshape(-1).index_select(0, self.index)
        self.entries.grad = taken if self.entries.grad is None else self.entries.grad.add_(taken)
        parameter.grad = None

    def weight(self) -> Tensor:
        if self.rows is None:
            return self.parameter
        own = self.entries.view(len(self.rows), -1)
        return self.parameter.detach().index_copy(0, self.rows, own)

    def gather(self) -> None:
        if self.index is not None:
            torch.index_select(self._flat(), 0, self.index, out=self.entries.data)

    def scatter(self) -> None:
        if self.index is not None:
            self._chosen.scatter(self.parameter, self.entries.data)

    def _flat(self) -> Tensor:
        return self.parameter.detach().reshape(-1)

    def close(self) -> None:
        self._end.close()


@contextmanager
def _in_any_order() -> Iterator[None]:
    """Chosen positions are distinct: sorting them before they are written would change nothing."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return torch.equal(a.to(b.device), b)
