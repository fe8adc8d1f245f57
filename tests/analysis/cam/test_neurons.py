"""Which layer and which neurons are looked at."""

from pathlib import Path

import numpy as np
import pytest
import torch
from handmade_clip import handmade_clip
from task_selections import learned_run
from tiny import tiny_clip, tiny_folder

import retouch
from retouch.analysis.cam.gscorecam import gscorecam
from retouch.analysis.cam.neurons import neuron_layer, selected_neurons
from retouch.errors import UserError
from retouch.methods import Settings, recipe
from retouch.sparse import Delta
from retouch.train.run_folder.read import delta_file, open_run


def test_learned_prompts_are_no_patches():
    """With prompts, a tower has more tokens, and runs twice."""
    clip = tiny_clip()
    before = neuron_layer(clip).patch_values(torch.zeros(1, 5, 64)).shape
    recipe("l2p").update.start(clip, Settings(), None)
    assert before == neuron_layer(clip).patch_values(torch.zeros(1, 9, 64)).shape == (4, 64)
    clip.model.get_submodule("prompts").learned.fill_(1)
    image = torch.zeros(16, 16, 3, dtype=torch.uint8)
    assert gscorecam(clip, image, "red").heat.shape == (16, 16)


def test_the_default_layer_is_as_deep_as_nine_of_twelve():
    assert neuron_layer(handmade_clip()).block == 3
    assert neuron_layer(retouch.load("builtin")).block == 4
    assert neuron_layer(tiny_clip(), 2).weight_name.endswith("layers.1.mlp.fc1.weight")


@pytest.mark.slow
def test_the_neurons_that_a_run_selected(tmp_path: Path):
    clip = retouch.load(str(tiny_folder(tmp_path / "model")))
    run = open_run(learned_run(tmp_path / "run", clip=clip))
    neurons = selected_neurons(run, block=1, share=0.1)
    name = neuron_layer(run.clip, 1).weight_name
    counts = np.zeros(64)
    for task in range(run.results.done):
        index = Delta.load(delta_file(tmp_path / "run", task)).changes[name].index.index
        counts += np.bincount(index // 32, minlength=64)
    assert len(neurons) == 6
    assert counts[neurons].min() >= np.delete(counts, neurons).max()
    assert run.at == 0  # unchanged
    assert neurons != selected_neurons(run, block=1, share=0.1, tasks=1)
    with pytest.raises(UserError, match="touched no weight of the first MLP layer of block 2"):
        selected_neurons(run, block=2, tasks=0)


def test_a_model_with_nan_has_no_heat_map():
    clip = tiny_clip()
    clip.model.get_parameter("visual_projection.weight").data[0, 0] = torch.nan
    with pytest.raises(UserError, match=r"tiny has 1 of .* in visual_projection\.weight"):
        gscorecam(clip, torch.zeros(16, 16, 3, dtype=torch.uint8), "a photo")
