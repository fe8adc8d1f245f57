"""A loss that is not finite stops the run; the tasks before stay."""

from pathlib import Path

import pytest
from pydantic import PrivateAttr
from runs import QUICK, method
from tiny import tiny_clip
from torch import Tensor

import retouch
from retouch.clip import Features
from retouch.data import Stream
from retouch.errors import Diverged
from retouch.evaluate import Results
from retouch.methods import Regularizer
from retouch.sparse import Delta


class Explode(Regularizer):
    """Makes the loss NaN after some steps."""

    after: int = 12
    _calls: int = PrivateAttr(0)

    def loss(self, features: Features) -> Tensor:
        self._calls += 1
        return features.texts.sum() * (float("nan") if self._calls > self.after else 0.0)


@pytest.mark.parametrize("runs_async", [False, True])
def test_a_loss_that_is_nan(
    runs_async: bool, tmp_path: Path, stream: Stream, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("retouch.train.record.runs_async", lambda device: runs_async)
    faulty = method().model_copy(update={"regularizer": Explode()})
    with pytest.raises(Diverged, match=r"the loss became nan in task 2.*below 0\.005"):
        retouch.teach(tiny_clip(), stream, faulty, out=tmp_path, settings=QUICK)
    assert Results.read(tmp_path).done == 1
    Delta.load(tmp_path / "deltas" / "task-01.safetensors").apply(tiny_clip().model)
