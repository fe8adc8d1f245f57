"""Frozen neurons of the lowest trained MLP are computed once per image; the rest is rounding."""

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch
from recipes_for_tests import QUICK, LossRecorder, learn, quick
from runs import CtrlC
from tiny import deep_clip, images, tiny_clip
from torch import Tensor, nn

import retouch
from retouch.clip import Clip
from retouch.clip.fast.light import LightClip
from retouch.clip.frozen.activation_store import ActivationStore
from retouch.clip.frozen.keyed_images import KeyedImages
from retouch.clip.frozen.reuse import reuse_frozen
from retouch.data import Stream
from retouch.data.loading.prefetch import load_images
from retouch.methods.updates import selective
from retouch.methods.updates.selective import SelectiveUpdate
from retouch.sparse import fingerprint, linear_layers
from retouch.sparse.neuron_linear import train_rows_only, trained_rows
from retouch.train import api, cpu_speed

PICTURES = images("pictures", 6, 4)
ROWS = torch.tensor([1, 4, 5, 30, 63])


def trained(clip: Clip) -> list[str]:
    return list(SelectiveUpdate(blocks=0.5, unit="neuron").trained_parameters(clip))


def keyed(clip: Clip, *indices: int) -> KeyedImages:
    loaded = load_images(clip, PICTURES, np.array(indices, np.int64))
    assert isinstance(loaded, KeyedImages)
    return loaded


def train_rows(clip: Clip, stack: ExitStack, rows: Tensor = ROWS) -> list[nn.Parameter]:
    """Train these rows of the upper blocks' first MLP layers; their entries."""
    clip.model.requires_grad_(False)
    entries = []
    for name in trained(clip):
        layer = clip.model.get_submodule(name.removesuffix(".weight"))
        entries.append(nn.Parameter(layer.weight[rows].detach().flatten()))
        stack.enter_context(train_rows_only(layer, rows, entries[-1]))
    return entries


def features_and_gradients(clip: Clip, neurons: bool, bf16: bool = False) -> list[Tensor]:
    """Of six images, the second time they are met."""
    clip.bf16 = bf16
    with reuse_frozen(clip, trained(clip), neurons=neurons), ExitStack() as stack:
        entries = train_rows(clip, stack)
        assert clip.frozen is not None
        clip.image_features(keyed(clip, 2, 5))
        features = clip.image_features(keyed(clip, 5, 2, 11, 0, 20, 2))
        features[:, 0].sum().backward()
        assert (clip.frozen.neurons is not None) == neurons
        assert not neurons or len(clip.frozen.neurons.store) == 5
    return [features.detach(), *(e.grad for e in entries if e.grad is not None)]


@pytest.mark.parametrize("bf16", [False, True])
def test_features_and_gradients_are_the_same_up_to_rounding(bf16: bool):
    plain, fast = (features_and_gradients(deep_clip(), neurons, bf16) for neurons in (False, True))
    assert len(plain) == len(fast) == 3, "two blocks"
    for one, other in zip(plain, fast, strict=True):
        assert one.dtype == other.dtype
        assert (one - other).norm() < (0.02 if bf16 else 1e-5) * one.norm()


def test_only_trained_neurons_are_computed_in_a_step():
    clip, widths = deep_clip(), []
    mlp = clip.model.get_submodule(f"{clip.blocks['image'][2]}.mlp")
    activation = mlp.activation_fn.forward

    def counting(hidden: Tensor) -> Tensor:
        widths.append(hidden.shape[-1])
        return activation(hidden)

    mlp.activation_fn.forward = counting
    with reuse_frozen(clip, trained(clip), neurons=True), ExitStack() as stack:
        train_rows(clip, stack)
        widths.clear()
        clip.image_features(keyed(clip, 3, 1))
        clip.image_features(keyed(clip, 1, 3))
    assert widths == [64 - 5, 5, 5]
    with reuse_frozen(clip, trained(clip), neurons=True):
        widths.clear()
        clip.image_features(keyed(clip, 3, 1))
    assert set(widths) == {64}, "no rows are trained"


def test_other_neurons_of_the_next_task_are_noticed():
    clip = deep_clip()
    with reuse_frozen(clip, trained(clip), neurons=True), torch.no_grad():
        for rows in (ROWS, ROWS + 1 - ROWS // 63):
            with ExitStack() as stack:
                train_rows(clip, stack, rows)
                features = clip.image_features(keyed(clip, 1, 2))
            with ExitStack() as stack:
                plain = clip.image_features(keyed(clip, 1, 2))
            assert torch.allclose(features, plain, atol=1e-6)
            clip.model.get_parameter(trained(clip)[0])[rows] *= 1.5


@pytest.mark.parametrize("name", ["mlp.fc1.weight", "mlp.fc2.weight", "layer_norm2.bias"])
def test_frozen_weights_that_change_after_all_are_noticed(name: str):
    """As when the end of a task merges weights that it did not train."""
    clip = deep_clip()
    with reuse_frozen(clip, trained(clip), neurons=True), ExitStack() as stack, torch.no_grad():
        train_rows(clip, stack)
        before = clip.image_features(keyed(clip, 1, 2))
        weight = clip.model.get_parameter(f"{clip.blocks['image'][2]}.{name}")
        weight += torch.linspace(-1, 1, weight.numel()).view_as(weight)
        after = clip.image_features(keyed(clip, 1, 2))
        stack.close()
        plain = clip.image_features(keyed(clip, 1, 2))
    assert not torch.allclose(before, after, atol=1e-4)
    assert torch.allclose(after, plain, atol=1e-6)


@pytest.mark.parametrize("more", ["mlp.fc2.weight", "layer_norm2.bias", "mlp.fc1.bias"])
def test_nothing_is_reused_where_more_of_the_block_is_trained(more: str):
    clip = deep_clip()
    with reuse_frozen(clip, [*trained(clip), f"{clip.blocks['image'][2]}.{more}"], neurons=True):
        assert clip.frozen is not None
        assert clip.frozen.half is not None
        assert clip.frozen.neurons is None


def test_rows_are_known_while_they_are_trained():
    layer = nn.Linear(4, 64)
    assert trained_rows(layer) is None
    with train_rows_only(layer, ROWS, entries := nn.Parameter(layer.weight[ROWS].detach())):
        found = trained_rows(layer)
        assert found is not None
        assert found.entries is entries
    assert trained_rows(layer) is None


class RowsRecorder(LossRecorder):
    """Records in each step which layers train rows alone, and whether frozen neurons are kept."""

    def __init__(self, clip: Clip) -> None:
        super().__init__()
        self.clip = clip
        self.rows: set[str] = set()
        self.keeps_neurons = False

    def on_step(self, step: int, epoch: int, loss: float) -> None:
        super().on_step(step, epoch, loss)
        modules = self.clip.model.named_modules()
        self.rows |= {name for name, module in modules if trained_rows(module) is not None}
        neurons = self.clip.frozen and self.clip.frozen.neurons
        self.keeps_neurons |= bool(neurons and len(neurons.store))


@pytest.mark.slow
def test_a_plain_clip_without_transformers_learns_in_the_same_way(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As `retouch learn` loads it: the same rows, the same frozen neurons and the same bits."""
    monkeypatch.setattr(api, "SMALL_MODEL", 0)
    monkeypatch.setattr(cpu_speed, "SMALL_MODEL", 0)
    deep_clip().save(tmp_path / "model")
    runs = []
    for light in (True, False):
        clip = retouch.load(tmp_path / "model", light=light)
        assert isinstance(clip, LightClip) == light
        recorder = RowsRecorder(clip)
        learn(clip, stream, quick("spu+"), settings=QUICK, callback=recorder)
        assert recorder.rows == {name.removesuffix(".weight") for name in trained(clip)}
        assert recorder.keeps_neurons
        runs.append((fingerprint(clip.model), recorder.losses))
    assert runs[0] == runs[1]


@pytest.mark.slow
def test_rows_alone_learn_what_whole_matrices_learn(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A product of fewer columns may be rounded differently."""
    tiny_clip().save(tmp_path / "model")
    runs = []
    for layers in (linear_layers, lambda model, names: {}):
        monkeypatch.setattr(selective, "linear_layers", layers)
        clip = retouch.load(tmp_path / "model", light=True)
        recorder = RowsRecorder(clip)
        learn(clip, stream, quick("spu+"), settings=QUICK, callback=recorder)
        runs.append((bool(recorder.rows), recorder.losses, dict(clip.model.named_parameters())))
    (by_rows, losses, weights), (dense, expected, others) = runs
    assert by_rows
    assert not dense
    assert losses == pytest.approx(expected, rel=1e-4)
    for name, weight in weights.items():
        torch.testing.assert_close(weight, others[name], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_interrupted_it_ends_with_the_same_bits(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(api, "SMALL_MODEL", 0)
    monkeypatch.setattr(cpu_speed, "SMALL_MODEL", 0)
    whole, resumed = deep_clip(), deep_clip()
    learn(whole, stream, quick("spu+"), settings=QUICK, out=tmp_path / "whole")
    again = {"settings": QUICK, "out": tmp_path / "resumed"}
    with pytest.raises(KeyboardInterrupt):
        learn(deep_clip(), stream, quick("spu+"), callback=CtrlC(5), **again)
    assert learn(resumed, stream, quick("spu+"), **again).finished
    assert fingerprint(resumed.model) == fingerprint(whole.model)


@pytest.mark.slow
def test_a_run_learns_the_same_up_to_rounding_however_much_memory_there_is(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
):
    results = []
    for small, memory in ((0, None), (0, 0), (10**9, None)):
        monkeypatch.setattr(api, "SMALL_MODEL", small)
        monkeypatch.setattr(cpu_speed, "SMALL_MODEL", small)
        monkeypatch.setattr(
            "retouch.clip.frozen.reuse.ActivationStore",
            lambda folder, memory=memory: ActivationStore(None, memory),
        )
        clip, recorder = deep_clip(), LossRecorder()
        learn(clip, stream, quick("spu+"), settings=QUICK, callback=recorder)
        results.append((fingerprint(clip.model), recorder.losses))
    (ours, losses), (little, same), (plain, expected) = results
    assert (ours, losses) == (little, same)
    assert ours != plain, "another order of summation"
    assert losses == pytest.approx(expected, rel=1e-3)
