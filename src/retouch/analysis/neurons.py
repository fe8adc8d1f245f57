"""The neurons of a visual block's first MLP layer: where they are, and which of them to look at."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from retouch.analysis.token_regions import Grid, grid_of
from retouch.clip import Clip
from retouch.errors import UserError
from retouch.sparse import locate, read_selection
from retouch.sparse.locate import neuron_axis
from retouch.sparse.select import top
from retouch.train.run_folder import OpenRun, delta_file

Neurons = Literal["gradient", "random"]


@dataclass(frozen=True)
class NeuronLayer:
    """The first MLP layer of one visual block."""

    block: int
    """From 1."""
    blocks: int
    """So many there are."""
    weight: str
    """The name of its weights; where they come in two parts, of the one that opens the gate."""
    module: nn.Module
    grid: Grid

    def at_patches(self, values: Tensor) -> Tensor:
        """Of its values for one image, in whatever order of axes: those at the patches [P, N].

        Class tokens and learned prompts stand before the patches.
        """
        tokens = values.reshape(-1, values.shape[-1])
        patches = self.grid[0] * self.grid[1]
        if len(tokens) < patches:
            raise UserError(
                f"block {self.block} has {len(tokens)} tokens for {self.grid[0]}×{self.grid[1]} "
                "patches: the tower joins or drops patches, so its neurons are no maps of the "
                "image; choose a model with a plain ViT"
            )
        return tokens[len(tokens) - patches :]


def layer_of(clip: Clip, block: int | None = None) -> NeuronLayer:
    """The layer of a block, counted from 1; None takes the one at three quarters of the depth.

    That is block 9 of the 12 of a ViT-B, as in the paper.
    """
    names = clip.blocks["image"]
    if not names:
        raise UserError(
            f"the visual tower of {clip.name} has no transformer blocks that retouch knows, so "
            "there is no MLP layer to look at; choose a CLIP of transformers or open_clip, with a "
            "ViT"
        )
    number = max(1, 3 * len(names) // 4) if block is None else block
    if not 1 <= number <= len(names):
        raise UserError(
            f"there is no layer {number}: the visual tower of {clip.name} has "
            f"{len(names)} blocks; choose 1 to {len(names)}"
        )
    inside = f"{names[number - 1]}."
    weight = next(name for name in locate(clip.model) if name.startswith(inside))
    module = clip.model.get_submodule(weight.rpartition(".")[0])
    return NeuronLayer(number, len(names), weight, module, grid_of(clip))


def select_neurons(
    gradients: Tensor, neurons: Neurons | Sequence[int], share: float, seed: int = 0
) -> Tensor:
    """The numbers of the neurons to look at, ascending; `gradients` has one for each of them."""
    count, device = gradients.numel(), gradients.device
    if not isinstance(neurons, str):
        named = torch.tensor(sorted(set(neurons)), dtype=torch.int64, device=device)
        if not len(named) or int(named[0]) < 0 or int(named[-1]) >= count:
            told = ", ".join(map(str, named.tolist()[:8])) or "none"
            raise UserError(f"of {count} neurons, 0 to {count - 1}, these were named: {told}")
        return named
    rng = torch.Generator().manual_seed(seed)
    scores = gradients if neurons == "gradient" else torch.rand(count, generator=rng).to(device)
    return _most(scores, share)


def _most(scores: Tensor, share: float) -> Tensor:
    if not 0 < share <= 1:
        raise UserError(f"share={share} is no share; choose one above 0 and up to 1, such as 0.1")
    found = top(scores, share)
    if not len(found):
        raise UserError(
            f"share={share} of {scores.numel()} neurons is less than one; choose a larger one"
        )
    return found


def selected_neurons(
    run: OpenRun, block: int | None = None, share: float = 0.1, tasks: int | None = None
) -> list[int]:
    """The share of a layer's neurons that a run's tasks touched most, by its first `tasks` or all.

    That is by how many entries of a neuron's weights the tasks were free to move, and of equals by
    how far these moved in all: where a method moves everything, that alone decides.
    """
    done = run.results.done if tasks is None else tasks
    layer, at = layer_of(run.clip, block), run.at
    axis = neuron_axis(run.clip.model, layer.weight)
    weight = run.load_task(0).model.get_parameter(layer.weight).detach().double().cpu().clone()
    moved = run.load_task(done).model.get_parameter(layer.weight).detach().double().cpu() - weight
    run.load_task(at)
    free = torch.zeros(weight.shape, dtype=torch.float64)
    for number in range(done):
        entries = read_selection(delta_file(run.folder, number)).get(layer.weight)
        if entries is not None:
            index = slice(None) if entries.index is None else entries.index
            free.view(-1)[index] += 1
    touched, far = (_by_neuron(part, axis) for part in (free, moved.abs()))
    if not touched.any():
        raise UserError(
            f"{run.folder} touched no weight of the first MLP layer of block {layer.block} "
            f"({run.results.method}, after {done} tasks); choose another layer, or neurons by "
            "their gradients"
        )
    # Entries count first; how far they moved decides among equals.
    return _most(touched + 0.5 * far / far.max().clamp(min=1e-300), share).tolist()


def _by_neuron(entries: Tensor, axis: int) -> Tensor:
    return entries.sum(dim=[d for d in range(entries.ndim) if d != axis])
