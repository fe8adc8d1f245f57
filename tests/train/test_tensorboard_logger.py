"""TensorBoard gets the losses and the accuracies."""

import sys
from pathlib import Path

import pytest
from continued_runs import GIVEN, halves
from recipes_for_tests import quick
from runs import Losses, teach

import retouch
from retouch.data import Stream
from retouch.errors import UserError
from retouch.train import open_run
from retouch.train.callbacks.callback import CallbackList
from retouch.train.callbacks.tensorboard import TensorBoard
from retouch.train.extend_stream import extend_stream


@pytest.mark.slow
def test_losses_and_accuracies_are_logged(tmp_path: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    losses = Losses()
    results, _ = teach(callback=CallbackList(losses, TensorBoard(tmp_path)))
    events = EventAccumulator(str(tmp_path)).Reload()
    second = [event.value for event in events.Scalars("loss/task 2")]
    assert second == pytest.approx(losses.values[9:18])
    control = [event.value for event in events.Scalars("accuracy/control")]
    assert control == pytest.approx([row.control for row in results.rows])
    joint = [event.value for event in events.Scalars("accuracy/new and control classes")]
    assert joint == pytest.approx([row.joint.overall for row in results.rows if row.joint])


@pytest.mark.slow
def test_a_run_continued_without_stored_images(model: Path, march_folder: Path, tmp_path: Path):
    """Before the first new task there are no images to evaluate the earlier ones on."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run, board = open_run(march_folder, model=str(model)), tmp_path / "board"
    stream, earlier = extend_stream(run, None, Stream.split(*halves()[1], tasks=1))
    options = {**GIVEN, "out": tmp_path / "april", "earlier": earlier}
    options["callback"] = TensorBoard(board)
    results = retouch.teach(run.clip, stream, quick("spu"), **options)
    events = EventAccumulator(str(board)).Reload()
    new = [(event.step, event.value) for event in events.Scalars("accuracy/new classes")]
    assert new == [(2, pytest.approx(results.metrics()["accuracy"]))]
    assert [event.step for event in events.Scalars("accuracy/control")] == [1, 2]


def test_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match=r"pip install 'retouch\[tensorboard\]'"):
        TensorBoard(tmp_path)
