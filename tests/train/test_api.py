"""`teach` and `preview`: what is checked before anything is learned, and what is not done twice."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from runs import QUICK, content, teach
from tiny import images, tiny_clip

import retouch
from retouch.data import Stream
from retouch.errors import UserError
from retouch.evaluate import Results
from retouch.methods import recipe
from retouch.sparse import fingerprint
from retouch.train import Callback


@pytest.mark.slow
def test_a_finished_run_is_not_run_again(
    tmp_path: Path, whole_run: Callable[[str], tuple[Path, str]]
):
    whole, expected = whole_run("spu")
    folder = shutil.copytree(whole, tmp_path / "run")

    class Never(Callback):
        def on_step(self, step: int, epoch: int, loss: float) -> None:
            raise AssertionError

    results, weights = teach(folder, callback=Never())
    assert results.finished
    assert results == Results.read(folder)
    assert weights == expected
    assert content(folder) == content(whole)


def test_a_buffer_too_small_is_refused_before_anything_is_learned(stream: Stream):
    clip = tiny_clip()
    before = fingerprint(clip.model)
    with pytest.raises(UserError, match="replay buffer of 2 images cannot hold"):
        retouch.teach(clip, stream, recipe("spu", {"replay.size": 2}), settings=QUICK)
    assert fingerprint(clip.model) == before


def test_a_bounded_method_needs_a_control_set(tmp_path: Path):
    stream = Stream.split(images("train", 2, 8), images("test", 2, 2), tasks=1)
    with pytest.raises(UserError, match="control"):
        retouch.teach(tiny_clip(), stream, "spu-bounded", out=tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_a_preview_changes_nothing(stream: Stream):
    clip = tiny_clip()
    before = fingerprint(clip.model)
    selection = retouch.preview(clip, stream, "spu", settings=QUICK)
    assert 0 < selection.count < clip.size
    assert fingerprint(clip.model) == before
    assert all(parameter.requires_grad for parameter in clip.model.parameters())
