"""AdamW for selected entries only: no moments, no decay and no gradient for anything else."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from retouch.arguments import check_arguments
from retouch.errors import UserError
from retouch.sparse.deterministic import use_deterministic
from retouch.sparse.neuron_linear import train_rows_only, whole_rows
from retouch.sparse.select import Selection, SparseIndex


class SparseAdamW(torch.optim.AdamW):
    """Moves the selected entries exactly as `torch.optim.AdamW` would; all others stay unchanged.

    It *is* torch's AdamW, over short flat tensors that hold the selected entries of each parameter:
    gathered before a step and scattered back after it. AdamW updates every entry independently, so
    it makes no difference that the others are missing. (With `fused=True` the CPU may round the
    last few entries of a tensor differently; by default the results are bit-identical.)

    As soon as autograd has a parameter's gradient, a hook gathers the selected entries from it and
    frees it: the dense gradients of the model are never in memory together. Several backward passes
    before a step accumulate, as usual. Where whole rows of a linear layer are selected (`layers`),
    only their gradient is computed in the first place. Schedulers, `clip_grad_norm_` and gradient
    scalers see the short tensors in `param_groups`. Call `close` at the end of the task, to remove
    the hooks.

    Args:
        parameters: The parameters by name; those without selected entries are ignored.
        selection: Which entries move.
        lr: Learning rate.
        betas: Decay rates of the two moments.
        eps: Term for numerical stability.
        weight_decay: Decoupled weight decay, on the selected entries only.
        lr_factors: A factor on the learning rate of some parameters, by name; 1 for the others.
        layers: Linear layers of which whole rows may be selected (see `linear_layers`): only these
            rows get a gradient.
        foreach: As in torch's AdamW.
        fused: As in torch's AdamW; faster on a GPU.
    """

    @check_arguments()
    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        selection: Selection,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        lr_factors: Mapping[str, float] | None = None,
        layers: Mapping[str, nn.Linear] | None = None,
        foreach: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        selection.check(parameters)
        self._selection = selection
        names = [name for name, index in selection.items() if index.count]
        if not names:
            raise UserError("the selection is empty: nothing to train; choose a larger rate")
        for name in names:
            if not parameters[name].is_floating_point():
                raise UserError(
                    f"{name} is {str(parameters[name].dtype).removeprefix('torch.')}, and only "
                    "floating-point weights can be trained; leave it out of the selection"
                )
        self._entries = [
            _Entries(parameters[name], selection[name], (layers or {}).get(name)) for name in names
        ]
        by_factor: dict[float, list[Tensor]] = {}
        for name, each in zip(names, self._entries, strict=True):
            by_factor.setdefault((lr_factors or {}).get(name, 1.0), []).append(each.entries)
        groups = [{"params": entries, "lr": lr * factor} for factor, entries in by_factor.items()]
        super().__init__(groups, lr, betas, eps, weight_decay, foreach=foreach, fused=fused or None)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        for each in self._entries:
            each.gather()
        loss = super().step(closure)
        with _nondeterministic_allowed():
            for each in self._entries:
                each.scatter()
        return loss

    def weights(self) -> dict[str, Tensor]:
        """The parameters as the model uses them now, differentiable in the trained entries."""
        names = [name for name, index in self._selection.items() if index.count]
        return {name: each.weight() for name, each in zip(names, self._entries, strict=True)}

    def state_dict(self) -> dict[str, Any]:
        """AdamW's own state, and the selection it belongs to."""
        positions = {name: index.index for name, index in self._selection.items()}
        return {**super().state_dict(), "selection": positions}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        adamw_state = dict(state_dict)
        positions: dict[str, Tensor | None] = adamw_state.pop("selection")
        if list(positions) != list(self._selection) or not all(
            _equal(positions[name], index.index) for name, index in self._selection.items()
        ):
            raise UserError(
                "this optimizer state belongs to another selection; resume with its own"
            )
        super().load_state_dict(adamw_state)

    def close(self) -> None:
        """Remove the hooks from the model's parameters."""
        for each in self._entries:
            each.close()


class _Entries:
    """One parameter and the short tensor that holds its selected entries."""

    def __init__(
        self, parameter: nn.Parameter, index: SparseIndex, layer: nn.Linear | None = None
    ) -> None:
        self.parameter = parameter.requires_grad_()
        self._index = index
        self._positions = index.index
        self._cleanup = ExitStack()
        # A whole tensor needs no gathering: AdamW works on the parameter itself.
        whole = self._positions is None
        self.entries = parameter if whole else nn.Parameter(index.gather(parameter))
        self._rows: Tensor | None = None
        if whole:
            return
        hook = parameter.register_post_accumulate_grad_hook(self._gather_gradient)
        self._cleanup.callback(hook.remove)
        if layer is not None and (rows := whole_rows(index)) is not None:
            self._rows = rows
            self._cleanup.enter_context(train_rows_only(layer, rows, self.entries))

    def _gather_gradient(self, parameter: Tensor) -> None:
        if parameter.grad is None:  # as of rows that are trained alone, which have theirs
            return
        assert self._positions is not None
        grad = parameter.grad.detach().reshape(-1).index_select(0, self._positions)
        self.entries.grad = grad if self.entries.grad is None else self.entries.grad.add_(grad)
        parameter.grad = None

    def weight(self) -> Tensor:
        if self._rows is None:
            return self.parameter
        rows = self.entries.view(len(self._rows), -1)
        return self.parameter.detach().index_copy(0, self._rows, rows)

    def gather(self) -> None:
        if self._positions is not None:
            flat = self.parameter.detach().reshape(-1)
            torch.index_select(flat, 0, self._positions, out=self.entries.data)

    def scatter(self) -> None:
        if self._positions is not None:
            self._index.scatter(self.parameter, self.entries.data)

    def close(self) -> None:
        self._cleanup.close()


@contextmanager
def _nondeterministic_allowed() -> Iterator[None]:
    """Positions are distinct, so the slower deterministic scatter would write the same."""
    enabled = torch.are_deterministic_algorithms_enabled()
    use_deterministic(False)
    try:
        yield
    finally:
        use_deterministic(enabled)


def _equal(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return torch.equal(a.to(b.device), b)
