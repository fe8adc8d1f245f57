"""The effects of single pairs, against their definition."""

from functools import partial

import numpy as np
import pytest
import torch
from traced_models import run_restored_slowly

import retouch
from retouch.analysis.token_regions import patch_grid
from retouch.analysis.trace.cases import Cases
from retouch.analysis.trace.causal_trace import causal_trace
from retouch.analysis.trace.effects import TraceSettings
from retouch.analysis.trace.hooks import SITES
from retouch.analysis.trace.patched_forward import PatchedTower
from retouch.analysis.trace.tracer import Tracer, _rng
from retouch.builtin.boxes import boxed_pictures


@pytest.mark.slow
def test_effects_are_as_the_paper_defines_them():
    clip, objects = retouch.load("builtin"), boxed_pictures(3)
    settings = TraceSettings(towers=("image",))
    cases = Cases(objects, clip.preprocess, patch_grid(clip), 0)
    case = next(iter(cases))
    tracer = Tracer(clip, settings, batch=64)
    widths = tracer.measure_embedding_std(cases)
    (found,) = tracer.effects(case, cases.read(case), widths)

    tower, inputs = PatchedTower(clip, "image"), cases.read(case)
    clean = tower.run_clean(inputs)
    text = clip.text_features(clip.tokenize([f"a photo of {case.name}"])).detach()[0]
    patches = torch.cat([tower.embeddings(cases.read(c))[1:] for c in cases])
    assert widths["image"] == pytest.approx(float(patches.std()))
    assert found.clean == pytest.approx(float(clean.feature @ text), abs=1e-6)
    assert found.noised == len(case.patches) < 16
    assert found.tokens == 17
    assert found.corrupted < found.clean
    assert all(len(getattr(found, site)) == 6 for site in SITES)


@pytest.mark.slow
def test_a_pair_by_hand():
    """|S_r - S_c| / S over tokens, with the noise svg anew here."""
    clip, objects = retouch.load("builtin"), boxed_pictures(2)
    cases = Cases(objects, clip.preprocess, patch_grid(clip), 0)
    case = next(iter(cases))
    tracer = Tracer(clip, TraceSettings(noise=2.0), batch=7)
    found = {
        e.tower: e for e in tracer.effects(case, cases.read(case), {"image": 0.9, "text": 0.05})
    }
    tower, inputs = PatchedTower(clip, "image"), cases.read(case)
    clean = tower.run_clean(inputs)
    text = clip.text_features(clip.tokenize([f"a photo of {case.name}"])).detach()[0]
    rng = _rng(0, case.key, case.name, "image", "0")
    embeddings = clean.embeddings.clone()
    noise = rng.standard_normal((len(case.patches), 192), np.float32)
    embeddings[[1 + p for p in case.patches]] += 2.0 * 0.9 * torch.from_numpy(noise)
    before = float(tower.run_corrupted(inputs, embeddings, clean).feature @ text)
    assert found["image"].corrupted == pytest.approx(before, abs=1e-6)
    for site in SITES:
        scores = [
            float(run_restored_slowly(tower, inputs, embeddings, clean, site, 2, token) @ text)
            for token in range(17)
        ]
        expected = np.mean([abs(score - before) for score in scores]) / found["image"].clean
        assert getattr(found["image"], site)[2] == pytest.approx(expected, rel=1e-3)
        assert expected > 1e-4


@pytest.mark.slow
def test_a_sample_of_tokens_estimates_all_of_them():
    clip, objects = retouch.load("builtin"), boxed_pictures(2)
    run = partial(causal_trace, clip, objects, images=1, batch=256)
    every = run(TraceSettings(towers=("image",)))
    many = run(TraceSettings(towers=("image",), tokens=8, draws=1))
    assert run(TraceSettings(towers=("image",), tokens=16)).towers == every.towers
    found = run(TraceSettings(towers=("image",), tokens=1))
    assert found.towers != every.towers
    for site in SITES:
        whole, part = every.towers["image"].at_site(site), many.towers["image"].at_site(site)
        # In the last block only the class token matters, which every sample has.
        assert part[-1].mean == pytest.approx(whole[-1].mean, rel=1e-4)
    few = run(TraceSettings(towers=("image",), tokens="object")).towers["image"]
    assert few.layer[-1].mean == pytest.approx(0, abs=1e-6)
