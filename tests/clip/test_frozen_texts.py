"""Lower text blocks that a run never changes are computed once per prompt, with the same bits."""

import gc

import pytest
import torch
from backbones import BACKBONES
from compiled_towers import count_passes
from tiny import deep_clip

from retouch.clip import Clip
from retouch.clip.frozen.reuse import release_if_trained, reuse_frozen
from retouch.clip.frozen.texts import FrozenTexts
from retouch.clip.text.zero_shot import PromptEnsemble
from retouch.methods.updates.selective import SelectiveUpdate

GROUPS = [(["cat", "dog", "a red sign"], ["a photo of a {}.", "{}"]), (["sign"], ["one {}"])]


def upper_half(clip: Clip) -> list[str]:
    return list(SelectiveUpdate(blocks=0.5).trained_parameters(clip))


def ensemble(clip: Clip) -> PromptEnsemble:
    return PromptEnsemble(clip, GROUPS, batch_size=3)


def move_text(clip: Clip, block: int) -> None:
    name = clip.blocks["text"][block]
    with torch.no_grad():
        for parameter in clip.model.get_submodule(name).parameters():
            parameter.add_(0.01)


def test_lower_blocks_run_once_per_prompt(monkeypatch: pytest.MonkeyPatch):
    clip = deep_clip()
    counts = count_passes(clip, "text", monkeypatch)
    prompts = ensemble(clip)
    with reuse_frozen(clip, None, trained_texts=upper_half(clip)):
        counts.clear()
        before = prompts.features(clip)
        assert counts == [3, 3, 1]
        move_text(clip, -1)
        after = prompts.features(clip)
        assert counts == [3, 3, 1], "not again"
    assert clip.frozen_texts is None
    assert not torch.equal(before, after)
    assert torch.equal(ensemble(clip).features(clip), after)
    assert len(counts) == 6


@pytest.mark.slow
@pytest.mark.parametrize("name", BACKBONES)
def test_every_backbone_gives_the_same_features(name: str):
    clip = BACKBONES[name]()
    blocks = clip.blocks["text"]
    trained = [n for n, _ in clip.model.named_parameters() if blocks and n.startswith(blocks[-1])]
    prompts = ensemble(clip)
    with reuse_frozen(clip, None, trained_texts=trained):
        assert (clip.frozen_texts is not None) == (len(blocks) > 1)
        prompts.features(clip)
        if blocks:
            move_text(clip, -1)
        found = prompts.features(clip)
    assert torch.equal(ensemble(clip).features(clip), found)


def test_a_lower_weight_that_changes_after_all_is_noticed():
    clip = deep_clip()
    prompts = ensemble(clip)
    with reuse_frozen(clip, None, trained_texts=upper_half(clip)):
        prompts.features(clip)
        move_text(clip, 0)
        found = prompts.features(clip)
    assert torch.equal(prompts.features(clip), found)


def test_nothing_is_reused_where_lower_or_unknown_weights_train():
    clip = deep_clip()
    lower = [name for name, _ in clip.model.named_parameters() if clip.blocks["text"][0] in name]
    for names in (lower, ["text_model.embeddings.token_embedding.weight"], None):
        with reuse_frozen(clip, None, trained_texts=names):
            assert clip.frozen_texts is None
    with reuse_frozen(clip, None, trained_texts=upper_half(clip)):
        assert clip.frozen_texts is not None
        release_if_trained(clip, upper_half(clip))
        assert clip.frozen_texts is not None
        release_if_trained(clip, lower)
        assert clip.frozen_texts is None


def kept(clip: Clip) -> FrozenTexts:
    assert clip.frozen_texts is not None
    return clip.frozen_texts


def test_what_is_kept_is_bounded_and_lives_as_long_as_its_prompts():
    clip = deep_clip()
    with reuse_frozen(clip, None, trained_texts=upper_half(clip)):
        prompts, others = ensemble(clip), ensemble(clip)
        features = prompts.features(clip)
        once = kept(clip).bytes_held
        assert once > 0
        others.features(clip)
        assert kept(clip).bytes_held == 2 * once
        del others
        gc.collect()
        assert kept(clip).bytes_held == once
        clip.text_features(clip.tokenize(["a photo"]))
        assert kept(clip).bytes_held == once, "a batch without an owner"
        assert clip.drop_kept(), "as when memory runs out"
        assert not clip.drop_kept()
        assert torch.equal(prompts.features(clip), features)
        assert kept(clip).bytes_held == 0


def test_gradients_reach_all_blocks():
    clip = deep_clip()
    tokens = clip.tokenize(["a photo of a cat"])
    with reuse_frozen(clip, None, trained_texts=upper_half(clip)):
        with torch.no_grad():
            clip.text_features(tokens, (clip, 0))
        clip.text_features(tokens, (clip, 0)).sum().backward()
    grads = [clip.model.get_submodule(clip.blocks["text"][i]).mlp.fc1.weight.grad for i in (0, -1)]
    assert all(grad is not None and grad.abs().sum() > 0 for grad in grads)
