"""Defaults suit the number of images."""

from types import SimpleNamespace

import pytest
from tiny import tiny_clip

from retouch.methods import RECIPES, Settings, recipe
from retouch.train.defaults import SMALL_MODEL, choose_defaults, default_settings


def test_settings_suit_few_images_and_many():
    clip, method = tiny_clip(), recipe("spu")
    few = choose_defaults(clip, method, {}, images=[12], classes=3)
    assert (few.settings.batch, few.settings.epochs) == (8, 30)
    assert few.method.replay.size == 12
    many = choose_defaults(clip, method, {}, images=[6000], classes=20, learned=4000)
    assert (many.settings.batch, many.settings.epochs) == (128, 10)
    assert many.method.replay.size == 400
    requested = choose_defaults(
        clip, method, {"batch": 32, "epochs": 3, "lr": 1e-4}, images=[12], classes=3
    )
    assert (requested.settings.batch, requested.settings.epochs, requested.settings.lr) == (
        32,
        3,
        1e-4,
    )
    for size in (7, 0.04):  # even the default is respected, if it was asked for
        with_size = choose_defaults(
            clip, method.with_change({"replay.size": size}), {}, images=[12], classes=3
        )
        assert with_size.method.replay.size == size
        assert len(with_size.notes) == 1
    class_balanced = method.with_change({"replay.balance": "class"})
    assert (
        choose_defaults(clip, class_balanced, {}, images=[12], classes=3).method.replay.size == 12
    )


@pytest.mark.parametrize("name", RECIPES)
def test_a_method_has_a_learning_rate_for_large_models_and_for_small_ones(name: str):
    method = recipe(name)
    assert default_settings(tiny_clip(), method).lr == method.small_model_lr
    large = SimpleNamespace(size=SMALL_MODEL)
    assert default_settings(large, method).lr == method.lr
    assert default_settings(large, method).weight_decay == Settings().weight_decay


def test_a_classifier_of_frozen_features_announces_no_learning_rate():
    chosen = choose_defaults(tiny_clip(), recipe("lda"), {}, images=[40], classes=4)
    assert not any("learning rate" in note for note in chosen.notes)
