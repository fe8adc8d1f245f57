"""AdamW for selected entries only: no moments, no decay and no gradient for anything else."""

from collections.abc import Callable, Collection, Iterator, Mapping
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
        no_decay: Names of parameters without weight decay, such as biases.
        layers: Linear layers of which whole rows may be selected (see `linear_layers`): only these
            rows get a gradient.
        compact: Hold as little memory as possible between steps: no copy of the selected entries,
            and half of their positions. A step takes a little longer, and `weights` cannot be
            called.
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
        no_decay: Collection[str] = (),
        layers: Mapping[str, nn.Linear] | None = None,
        compact: bool = False,
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
            _Entries(parameters[name], selection[name], (layers or {}).get(name), compact)
            for name in names
        ]
        by_options: dict[tuple[float, float], list[Tensor]] = {}
        for name, each in zip(names, self._entries, strict=True):
            factor, decay = (lr_factors or {}).get(name, 1.0), weight_decay
            options = lr * factor, 0.0 if name in no_decay else decay
            by_options.setdefault(options, []).append(each.entries)
        groups = [
            {"params": entries, "lr": group_lr, "weight_decay": decay}
            for (group_lr, decay), entries in by_options.items()
        ]
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
        self,
        parameter: nn.Parameter,
        index: SparseIndex,
        layer: nn.Linear | None = None,
        compact: bool = False,
    ) -> None:
        self.parameter = parameter.requires_grad_()
        self._cleanup = ExitStack()
        self._rows: Tensor | None = None
        self._positions: Tensor | _CompactPositions | None = None
        self._memory: int | None = None
        # A whole tensor needs no gathering: AdamW works on the parameter itself.
        self._whole = index.index is None
        self.entries = parameter if self._whole else nn.Parameter(index.gather(parameter))
        if self._whole:
            return
        if layer is not None and (rows := whole_rows(index)) is not None:
            self._rows = rows.to(parameter.device)
            self._cleanup.enter_context(train_rows_only(layer, self._rows, self.entries))
        else:
            self._positions = _positions_on(parameter.device, index, compact)
        hook = parameter.register_post_accumulate_grad_hook(self._gather_gradient)
        self._cleanup.callback(hook.remove)
        self._memory = self.entries.untyped_storage().nbytes() if compact else None
        self._free()

    def _gather_gradient(self, parameter: Tensor) -> None:
        if parameter.grad is None:  # as of rows that are trained alone, which have theirs
            return
        grad = self._selected(parameter.grad.detach())
        self.entries.grad = grad if self.entries.grad is None else self.entries.grad.add_(grad)
        parameter.grad = None

    def _selected(self, tensor: Tensor, out: Tensor | None = None) -> Tensor:
        """The selected entries of a tensor of the parameter's shape, flat."""
        if self._rows is not None:
            rows = None if out is None else out.view(len(self._rows), -1)
            return torch.index_select(tensor, 0, self._rows, out=rows).flatten()
        return torch.index_select(tensor.reshape(-1), 0, self._flat_positions(), out=out)

    def _flat_positions(self) -> Tensor:
        positions = self._positions
        assert positions is not None
        return positions.flat() if isinstance(positions, _CompactPositions) else positions

    def weight(self) -> Tensor:
        if self._rows is None:
            return self.parameter
        rows = self.entries.view(len(self._rows), -1)
        return self.parameter.detach().index_copy(0, self._rows, rows)

    def gather(self) -> None:
        if self._whole:
            return
        if self._memory is not None:
            self.entries.untyped_storage().resize_(self._memory)
        self._selected(self.parameter.detach(), out=self.entries.data)

    def scatter(self) -> None:
        if self._rows is not None:
            rows = self.entries.data.view(len(self._rows), -1)
            self.parameter.detach().index_copy_(0, self._rows, rows)
        elif self._positions is not None:
            positions = SparseIndex(tuple(self.parameter.shape), self._flat_positions().long())
            positions.scatter(self.parameter, self.entries.data)
        self._free()

    def _free(self) -> None:
        """The short tensor keeps its shape, which its gradient needs; `gather` fills it again."""
        if self._memory is not None:
            self.entries.untyped_storage().resize_(0)

    def close(self) -> None:
        self._cleanup.close()


class _CompactPositions:
    """Positions in a matrix as the number of entries per row, and two bytes for each column."""

    MAX_WIDTH = 2**16

    def __init__(self, device: torch.device, index: SparseIndex) -> None:
        assert index.index is not None
        height, width = index.shape
        rows, columns = index.index // width, index.index % width
        self._counts = torch.bincount(rows, minlength=height).to(device)
        self._starts = torch.arange(0, height * width, width, device=device)
        self._columns = (columns - self.MAX_WIDTH // 2).to(torch.int16).to(device)

    def flat(self) -> Tensor:
        """The positions in the flat matrix."""
        count = self._columns.numel()
        starts = torch.repeat_interleave(self._starts, self._counts, output_size=count)
        return starts.add_(self._columns).add_(self.MAX_WIDTH // 2)


def _positions_on(
    device: torch.device, index: SparseIndex, compact: bool
) -> Tensor | _CompactPositions:
    """The positions on a device."""
    assert index.index is not None
    fits = len(index.shape) == 2 and index.shape[1] <= _CompactPositions.MAX_WIDTH
    return _CompactPositions(device, index) if compact and fits else index.index.to(device)


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
