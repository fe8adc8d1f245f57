"""gScoreCAM on a model whose answers are known, and on the models of every library."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from backbones import dual, open_clip, own_pair, small_open_clip
from handmade_clip import COLUMNS, PATCH, ROWS, colored_image, handmade_clip
from tiny import tiny_clip
from torch import Tensor

import retouch
from retouch.analysis.cam.gscorecam import gscorecam, upsample_masks
from retouch.clip import Clip
from retouch.clip.open_clip.model import OpenClip, import_open_clip
from retouch.errors import UserError


@pytest.mark.parametrize(("text", "neuron", "patch"), [("red", 0, (0, 3)), ("green", 1, (2, 1))])
def test_a_neuron_that_lights_up_at_one_patch_is_found_there(text, neuron, patch):
    cam = gscorecam(handmade_clip(), colored_image(), text, share=0.1)
    assert cam.neurons == [neuron]  # of the ten the one whose gradient is largest
    assert (cam.block, cam.grid, cam.layer_width) == (3, (ROWS, COLUMNS), 10)
    assert cam.heat.shape == (ROWS * PATCH, COLUMNS * PATCH)
    assert np.unravel_index(cam.patch_means.argmax(), cam.patch_means.shape) == patch
    row, column = cam.peak
    assert (row // PATCH, column // PATCH) == patch
    assert cam.heat.max() == 1
    assert cam.heat.min() == 0
    others = np.delete(cam.patch_means.flatten(), patch[0] * COLUMNS + patch[1])
    assert others.max() < 0.5 < cam.patch_means[patch]


def test_maps_count_by_the_score_of_the_masked_image():
    """Both maps are used; only the one that keeps what the text says weighs anything."""
    cam = gscorecam(handmade_clip(), colored_image(), "red", neurons=[1, 0])
    assert cam.neurons == [0, 1]
    assert cam.weights[0] > 0.99
    assert sum(cam.weights) == pytest.approx(1)
    assert cam.similarity == pytest.approx(
        float(image_feature(handmade_clip(), colored_image()) @ torch.tensor([1.0, 0, 0])), abs=1e-5
    )


def image_feature(clip: Clip, image: Tensor) -> Tensor:
    return clip.image_features(image[None])[0].detach()


def test_masks_go_from_0_to_1_and_a_flat_map_hides_everything():
    maps = torch.stack([torch.randn(3, 5), -7 + torch.rand(3, 5), torch.full((3, 5), 4.0)])
    masks = upsample_masks(maps, (24, 40))
    assert masks.shape == (3, 24, 40)
    assert masks.amin(dim=(1, 2)).tolist() == [0, 0, 0]
    assert masks.amax(dim=(1, 2)).tolist() == [1, 1, 0]
    assert torch.isfinite(masks).all()


def wide_open_clip() -> Clip:
    """Pictures twice as wide as high, squashed to that."""
    library = import_open_clip()
    vision = {"image_size": [16, 32], "layers": 2, "width": 64, "head_width": 32, "patch_size": 8}
    name = small_open_clip("wide", vision_cfg=vision)
    model = library.create_model(name)
    model.visual.preprocess_cfg = {**model.visual.preprocess_cfg, "resize_mode": "squash"}
    return OpenClip(model, library.get_tokenizer(name), name)


MODELS: dict[str, tuple[Callable[[], Clip], tuple[int, int]]] = {
    "transformers CLIPModel": (tiny_clip, (2, 2)),
    "transformers dual encoder": (dual, (2, 2)),
    "open_clip": (open_clip, (2, 2)),
    "open_clip, not square": (wide_open_clip, (2, 4)),
    "builtin": (lambda: retouch.load("builtin"), (4, 4)),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_every_library_gives_the_same_map_again(kind: str):
    make, grid = MODELS[kind]
    clip = make()
    clip.model.requires_grad_(False)  # a frozen model has neurons, too
    rng = np.random.default_rng(0)
    image = torch.from_numpy(rng.integers(0, 256, (*clip.preprocess.size, 3)).astype(np.uint8))
    progress: list[tuple[int, int]] = []
    first = gscorecam(clip, image, "a photo of the red", on_progress=lambda *n: progress.append(n))
    again = gscorecam(clip, image, "a photo of the red")
    assert first.grid == grid
    assert first.heat.shape == clip.preprocess.size
    assert first.heat.dtype == np.float32
    assert (first.heat.min(), first.heat.max()) == (0, 1)
    assert np.array_equal(first.heat, again.heat)
    assert first.neurons == again.neurons
    assert len(first.neurons) == first.layer_width // 10
    assert sum(done for done, _ in progress) == progress[0][1] == len(first.neurons)
    random_neurons = [
        gscorecam(clip, image, "red", neurons="random", seed=seed).neurons for seed in (1, 1, 2)
    ]
    assert random_neurons[0] == random_neurons[1] != random_neurons[2]
    assert not any(module._forward_hooks for module in clip.model.modules())


@pytest.mark.slow
def test_mistakes_are_explained():
    clip = tiny_clip()
    image = torch.zeros(16, 16, 3, dtype=torch.uint8)
    with pytest.raises(UserError, match=r"no layer 3: .* has 2 blocks; choose 1 to 2"):
        gscorecam(clip, image, "red", block=3)
    with pytest.raises(UserError, match="more than the 12 that tiny reads; use a shorter"):
        gscorecam(clip, image, "red " * 11)
    gscorecam(clip, image, "red " * 10)  # with a beginning and an end it just fits
    with pytest.raises(UserError, match="79 tokens, more than the 77"):
        gscorecam(open_clip(), image, "red " * 77)
    with pytest.raises(UserError, match="the text is empty"):
        gscorecam(clip, image, " ")
    with pytest.raises(UserError, match="less than one"):
        gscorecam(clip, image, "red", share=0.001)
    with pytest.raises(UserError, match="is not a share"):
        gscorecam(clip, image, "red", share=1.5)
    with pytest.raises(UserError, match="of 64 neurons, 0 to 63"):
        gscorecam(clip, image, "red", neurons=[64])
    with pytest.raises(UserError, match="no transformer blocks"):
        gscorecam(own_pair(), image, "red")
