"""The neurons of a visual block's first MLP layer: where they are, and which ones to look at."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from retouch.analysis.token_regions import Grid, patch_grid
from retouch.clip import Clip
from retouch.clip.finite import check_weights
from retouch.errors import UserError
from retouch.sparse import locate, read_selection
from retouch.sparse.locate import neuron_axis
from retouch.sparse.select import top
from retouch.train.run_folder.read import OpenRun, delta_file

NeuronChoice = Literal["gradient", "random"]


@dataclass(frozen=True)
class NeuronLayer:
    """The first MLP layer of one visual block."""

    block: int
    """From 1."""
    num_blocks: int
    weight_name: str
    """The name of its weight tensor; of a gated layer with two tensors, the gate's."""
    module: nn.Module
    grid: Grid

    def patch_values(self, values: Tensor) -> Tensor:
        """The layer's values at the patches [P, N], from its values at all tokens of one image.

        The axes before the last may be in any order. Class tokens and learned prompts come before
        the patches.
        """
        tokens = values.reshape(-1, values.shape[-1])
        patches = self.grid[0] * self.grid[1]
        if len(tokens) < patches:
            raise UserError(
                f"block {self.block} has {len(tokens)} tokens for {self.grid[0]}×{self.grid[1]} "
                "patches: the tower merges or drops patches, so its neurons are not maps of the "
                "image; choose a model with a plain ViT"
            )
        return tokens[len(tokens) - patches :]


def neuron_layer(clip: Clip, block: int | None = None) -> NeuronLayer:
    """The layer of a block, counted from 1; None takes the one at three quarters of the depth.

    For a ViT-B with 12 blocks that is block 9, as in the paper.
    """
    check_weights(clip)
    names = clip.blocks["image"]
    if not names:
        raise UserError(
            f"the visual tower of {clip.name} has no transformer blocks that retouch knows, so "
            "there is no MLP layer to look at; choose a CLIP from transformers or open_clip, with "
            "a ViT"
        )
    number = max(1, 3 * len(names) // 4) if block is None else block
    if not 1 <= number <= len(names):
        raise UserError(
            f"there is no layer {number}: the visual tower of {clip.name} has "
            f"{len(names)} blocks; choose 1 to {len(names)}"
        )
    prefix = f"{names[number - 1]}."
    weight_name = next(name for name in locate(clip.model) if name.startswith(prefix))
    module = clip.model.get_submodule(weight_name.rpartition(".")[0])
    return NeuronLayer(number, len(names), weight_name, module, patch_grid(clip))


def select_neurons(
    gradients: Tensor, neurons: NeuronChoice | Sequence[int], share: float, seed: int = 0
) -> Tensor:
    """The indices of the neurons to look at, ascending; `gradients` has one value per neuron."""
    count, device = gradients.numel(), gradients.device
    if not isinstance(neurons, str):
        indices = torch.tensor(sorted(set(neurons)), dtype=torch.int64, device=device)
        if not len(indices) or int(indices[0]) < 0 or int(indices[-1]) >= count:
            given = ", ".join(map(str, indices.tolist()[:8])) or "none"
            raise UserError(f"of {count} neurons, 0 to {count - 1}, these were named: {given}")
        return indices
    rng = torch.Generator().manual_seed(seed)
    scores = gradients if neurons == "gradient" else torch.rand(count, generator=rng).to(device)
    return _top_share(scores, share)


def _top_share(scores: Tensor, share: float) -> Tensor:
    if not 0 < share <= 1:
        raise UserError(
            f"share={share} is not a share; choose one above 0 and up to 1, such as 0.1"
        )
    indices = top(scores, share)
    if not len(indices):
        raise UserError(
            f"share={share} of {scores.numel()} neurons is less than one; choose a larger one"
        )
    return indices


def selected_neurons(
    run: OpenRun, block: int | None = None, share: float = 0.1, tasks: int | None = None
) -> list[int]:
    """The share of a layer's neurons that a run's tasks (the first `tasks`, or all) touched most.

    Neurons are ranked by how many of their weights the tasks were free to move, and ties by how far
    these moved in total: where a method moves everything, that alone decides.
    """
    done = run.results.done if tasks is None else tasks
    layer, current_task = neuron_layer(run.clip, block), run.at
    axis = neuron_axis(run.clip.model, layer.weight_name)
    before = _weight(run, 0, layer.weight_name).clone()
    change = _weight(run, done, layer.weight_name) - before
    run.load_task(current_task)
    times_selected = torch.zeros(before.shape, dtype=torch.float64)
    for number in range(done):
        entries = read_selection(delta_file(run.folder, number)).get(layer.weight_name)
        if entries is not None:
            index = slice(None) if entries.index is None else entries.index
            times_selected.view(-1)[index] += 1
    selected, moved = (_sum_per_neuron(part, axis) for part in (times_selected, change.abs()))
    if not selected.any():
        raise UserError(
            f"{run.folder} touched no weight of the first MLP layer of block {layer.block} "
            f"({run.results.method}, after {done} tasks); choose another layer, or neurons by "
            "their gradients"
        )
    # The count decides first; how far the weights moved breaks ties.
    return _top_share(selected + 0.5 * moved / moved.max().clamp(min=1e-300), share).tolist()


def _weight(run: OpenRun, task: int, name: str) -> Tensor:
    """A weight tensor after a task, in double precision on the CPU."""
    return run.load_task(task).model.get_parameter(name).detach().double().cpu()


def _sum_per_neuron(entries: Tensor, axis: int) -> Tensor:
    return entries.sum(dim=[d for d in range(entries.ndim) if d != axis])
