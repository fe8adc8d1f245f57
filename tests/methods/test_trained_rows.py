"""Whole neurons are trained by the rows of their layer alone, however the model was loaded."""

from pathlib import Path

import pytest
import torch
from recipes_for_tests import QUICK, LossRecorder, learn, quick
from tiny import deep_clip, tiny_clip
from torch import nn

import retouch
from retouch.clip import Clip
from retouch.clip.fast.light import LightClip
from retouch.data import Stream
from retouch.methods.updates import selective
from retouch.methods.updates.selective import SelectiveUpdate
from retouch.sparse import fingerprint, linear_layers
from retouch.train import cpu_speed


class RowsRecorder(LossRecorder):
    """Records in each step which linear layers train rows alone."""

    def __init__(self, clip: Clip) -> None:
        super().__init__()
        self.clip = clip
        self.rows: set[str] = set()

    def on_step(self, step: int, epoch: int, loss: float) -> None:
        super().on_step(step, epoch, loss)
        for name, module in self.clip.model.named_modules():
            if isinstance(module, nn.Linear) and "forward" in vars(module):
                self.rows.add(name)


@pytest.mark.slow
def test_a_plain_clip_without_transformers_learns_in_the_same_way(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As `retouch learn` loads it: the same rows and the same bits."""
    monkeypatch.setattr(cpu_speed, "SMALL_MODEL", 0)
    deep_clip().save(tmp_path / "model")
    runs = []
    for light in (True, False):
        clip = retouch.load(tmp_path / "model", light=light)
        assert isinstance(clip, LightClip) == light
        recorder = RowsRecorder(clip)
        learn(clip, stream, quick("spu+"), settings=QUICK, callback=recorder)
        trained = SelectiveUpdate(blocks=0.5, unit="neuron").trained_parameters(clip)
        assert recorder.rows == {name.removesuffix(".weight") for name in trained}
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
