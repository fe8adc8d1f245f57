"""Words drift when the text tower moves, and only then."""

import pytest
import torch
from tiny import images, tiny_clip

import retouch
from retouch.clip.text.everyday_words import word_features, words
from retouch.data import Stream
from retouch.evaluate.drift import drift_between
from retouch.methods import Settings

pytestmark = pytest.mark.usefixtures("all_words")


def test_words_drift_when_the_text_tower_moves_and_only_then():
    clip = tiny_clip()
    before = word_features(clip)
    assert drift_between(before, word_features(clip)).moved == 0
    with torch.no_grad():
        clip.model.vision_model.encoder.layers[0].mlp.fc1.weight.mul_(2)
    assert drift_between(before, word_features(clip)).neighbours == 100
    with torch.no_grad():
        clip.model.text_projection.weight.normal_()
    drift = drift_between(before, word_features(clip))
    assert drift.moved > 0.1
    assert drift.neighbours < 100
    assert len(words()) == len(set(words())) > 400


def test_a_run_measures_drift_after_its_last_task():
    stream = Stream.split(images("train", 4, 4), images("test", 4, 2), tasks=2)
    settings = Settings(epochs=1, batch=8, lr=1e-3)
    results = retouch.teach(tiny_clip(), stream, "flyp", settings=settings)
    first, second, last = (row.drift for row in results.rows)
    assert first is second is None
    assert last is not None
    assert last.moved > 0
