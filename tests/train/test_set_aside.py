"""A new run replaces another one, which comes back if the new one cannot start."""

from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_clip

import retouch
from retouch.data import Stream
from retouch.errors import UserError
from retouch.evaluate import Results
from retouch.methods import Settings
from retouch.train import Callback


def teach(clip: Any, stream: Stream, out: Path, **more: Any) -> Results:
    settings = Settings(epochs=more.pop("epochs", 1), batch=8, lr=more.pop("lr", 1e-3))
    return retouch.teach(clip, stream, "flyp", settings=settings, out=out, **more)


@pytest.mark.slow
def test_only_a_run_that_has_learned_nothing_is_replaced(stream: Stream, tmp_path: Path):
    """A run that has learned something is refused, unless `overwrite` is set."""
    out = tmp_path / "run"
    with pytest.raises(UserError, match="the loss became"):
        teach(tiny_clip(), stream, out, lr=1e30)
    assert Results.read(out).done == 0, "it had begun to train: its losses are still there"
    first = teach(tiny_clip(), stream, out)
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    with pytest.raises(UserError, match=r"settings\.epochs: 1 in that run, 2 now.*overwrite=True"):
        teach(tiny_clip(), stream, out, epochs=2)
    with pytest.raises(UserError, match="the loss became"):
        teach(tiny_clip(), stream, out, lr=1e30, overwrite=True)
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before
    again = teach(tiny_clip(), stream, out, epochs=2, overwrite=True)
    assert again.settings["epochs"] == 2
    assert Results.read(out).rows == again.rows != first.rows
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


@pytest.mark.slow
def test_a_run_that_was_killed_before_it_learned_is_replaced(stream: Stream, tmp_path: Path):
    class Killed(BaseException):
        pass

    class Kill(Callback):
        def on_task_begin(self, task: int, steps: int) -> None:
            raise Killed

    with pytest.raises(Killed):
        teach(tiny_clip(), stream, tmp_path / "run", callback=Kill())
    assert Results.read(tmp_path / "run").begun
    assert teach(tiny_clip(), stream, tmp_path / "run", epochs=2).finished
