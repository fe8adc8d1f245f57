"""The three runs of a tower: clean, corrupted, restored; in every library."""

from collections import Counter
from functools import partial

import pytest
import torch
from backbones import BACKBONES, own_pair
from traced_models import TOWERS, TRACEABLE, inputs_of, run_restored_slowly

import retouch
from retouch.analysis.trace.causal_trace import causal_trace
from retouch.analysis.trace.hooks import SITES
from retouch.analysis.trace.patched_forward import PatchedTower, restored_rows
from retouch.builtin.boxes import boxed_pictures
from retouch.clip import Clip
from retouch.errors import UserError


@pytest.fixture(params=TRACEABLE)
def clip(request: pytest.FixtureRequest) -> Clip:
    return TRACEABLE[request.param]()


def corrupted_run(clip: Clip, tower_name: str):
    """A tower, its input, its clean run, and a corrupted one."""
    tower, inputs = PatchedTower(clip, tower_name), inputs_of(clip, tower_name)
    clean = tower.run_clean(inputs)
    embeddings = clean.embeddings.clone()
    width = embeddings.shape[1]
    embeddings[1:3] += 3 * torch.randn(2, width, generator=torch.Generator().manual_seed(0))
    return tower, inputs, clean, embeddings, tower.run_corrupted(inputs, embeddings, clean)


@pytest.mark.parametrize("tower_name", TOWERS)
def test_restoring_everything_is_clean_and_nothing_is_corrupted(clip: Clip, tower_name: str):
    tower, inputs, clean, _, corrupted = corrupted_run(clip, tower_name)
    plain = tower.features(inputs)
    same = partial(torch.testing.assert_close, rtol=0, atol=2e-6)
    same(clean.feature[None], plain)
    assert (corrupted.feature - clean.feature).abs().max() > 1e-4
    for block in range(len(tower)):
        same(tower.resume_after(inputs, clean.layer[block][None], block), plain)
        same(
            tower.resume_after(inputs, corrupted.layer[block][None], block), corrupted.feature[None]
        )
    same(tower.run_corrupted(inputs, clean.embeddings, clean).feature[None], plain)
    same(tower.embeddings(inputs), clean.embeddings)
    same(tower.features(inputs), plain)  # nothing of it stays behind in the model


@pytest.mark.slow
@pytest.mark.parametrize("tower_name", TOWERS)
def test_batched_restorations_equal_single_ones(clip: Clip, tower_name: str):
    tower, inputs, clean, embeddings, corrupted = corrupted_run(clip, tower_name)
    places = [0, 1, 2, len(embeddings) - 1]
    largest = 0.0
    for block in (0, len(tower) - 1):
        for site in SITES:
            rows = restored_rows(clean, corrupted, site, block)[places]
            quick = tower.run_restored(inputs, corrupted.layer[block], rows, places, block, batch=3)
            slow = [
                run_restored_slowly(tower, inputs, embeddings, clean, site, block, p)
                for p in places
            ]
            torch.testing.assert_close(quick, torch.stack(slow), rtol=0, atol=2e-6)
            largest = max(largest, float((quick - corrupted.feature).abs().max()))
    assert largest > 1e-4


@pytest.mark.slow
def test_blocks_before_the_restored_one_do_not_run_again():
    clip = retouch.load("builtin")
    objects, ran = boxed_pictures(1), Counter()
    for tower_name in TOWERS:
        for module in PatchedTower(clip, tower_name).modules.mlp:
            module.register_forward_hook(
                lambda _, args, out, s=tower_name: ran.update({s: len(out)})
            )
    causal_trace(clip, objects, batch=1000)
    for tower_name, blocks, tokens in (("image", 6, 17), ("text", 4, 8)):
        clean, corrupted = blocks, 3 * blocks
        restored = 3 * tokens * blocks * (blocks - 1) // 2
        assert ran[tower_name] == clean + corrupted + restored


def test_towers_that_cannot_be_traced():
    with pytest.raises(UserError, match="no transformer blocks"):
        PatchedTower(own_pair(), "text")
    prompted = BACKBONES["transformers CLIPModel"]()
    prompted.model.prompts = torch.nn.Linear(1, 1)
    with pytest.raises(UserError, match="learned prompts"):
        PatchedTower(prompted, "image")
