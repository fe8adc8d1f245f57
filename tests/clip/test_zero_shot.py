"""Zero-shot classifiers: prompts, templates, and batches of prompts of similar length."""

import pytest
import torch
from tiny import tiny_clip, tiny_siglip
from torch import nn

from retouch.clip.text.zero_shot import PromptEnsemble, classifier, fill_template, probabilities
from retouch.errors import UserError


def test_class_features_are_the_normalized_mean_over_templates():
    clip = tiny_clip()
    names, templates = ["red", "dark blue"], ["a photo of {}", "the {}"]
    ensemble = PromptEnsemble(clip, [(names, templates)], batch_size=3)
    features = ensemble.features(clip)
    assert torch.equal(features, ensemble.features(clip))
    assert torch.allclose(features, classifier(clip, names, templates), atol=1e-6)
    for label, name in enumerate(names):
        prompts = clip.text_features(clip.tokenize([t.replace("{}", name) for t in templates]))
        expected = nn.functional.normalize(prompts.mean(0), dim=-1)
        torch.testing.assert_close(features[label], expected, rtol=0, atol=2e-6)
    with pytest.raises(UserError, match=r"must hold \{\} once"):
        fill_template("a photo", names)


def test_prompts_are_batched_by_their_number_of_tokens(monkeypatch: pytest.MonkeyPatch):
    """Whatever their number of characters, to keep padding low."""
    clip = tiny_clip()
    short, long = "red " + 20 * " ", "a b c d e f"
    names = [short, long, long, short + " "]
    shapes = []
    text_features = clip.text_features

    def record_shape(tokens: dict[str, torch.Tensor], key: object) -> torch.Tensor:
        shapes.append(tuple(tokens["input_ids"].shape))
        return text_features(tokens)

    monkeypatch.setattr(clip, "text_features", record_shape)
    ensemble = PromptEnsemble(clip, [(names, ["{}"])], batch_size=2)
    features = ensemble.features(clip)
    assert [count for count, _ in shapes] == [2, 2]
    assert shapes[0][1] < shapes[1][1]
    for label, name in enumerate(names):
        expected = text_features(clip.tokenize([name]))[0]
        torch.testing.assert_close(features[label], expected, rtol=0, atol=2e-6)


def test_probabilities_are_the_models_own():
    similarity = torch.tensor([[0.3, 0.1], [-0.2, -0.3]])
    clip, siglip = tiny_clip(), tiny_siglip()
    shares = probabilities(clip, similarity)
    torch.testing.assert_close(shares, (clip.logit_scale * similarity).softmax(dim=1))
    single = probabilities(siglip, similarity)
    torch.testing.assert_close(single, (10 * similarity - 10).sigmoid())
    assert (single.sum(dim=1) < 0.01).all(), "nothing here is like these images"
