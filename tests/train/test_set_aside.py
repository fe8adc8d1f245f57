"""A new run replaces another one, which comes back if the new one cannot start."""

from pathlib import Path
from typing import Any

import pytest
from runs import CtrlC, Stop
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


ASIDE = ".run.replaced"


@pytest.fixture
def replaced(stream: Stream, tmp_path: Path) -> tuple[Path, dict[str, bytes]]:
    """A finished run, and its files."""
    out = tmp_path / "run"
    teach(tiny_clip(), stream, out)
    return out, files(out)


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.slow
def test_a_run_stays_set_aside_until_the_new_one_has_learned_a_task(
    replaced: tuple[Path, dict[str, bytes]], stream: Stream, tmp_path: Path
):
    """Ctrl-C saves a checkpoint, which is worth keeping, but less than a run that is finished."""
    out, before = replaced
    for _ in range(2):  # the second starts anew: `overwrite` replaces the checkpoint, not the run
        with pytest.raises(KeyboardInterrupt):
            teach(tiny_clip(), stream, out, epochs=2, overwrite=True, callback=CtrlC(2))
        assert files(tmp_path / ASIDE) == before
        assert (out / "checkpoint.safetensors").exists()
    with pytest.raises(UserError, match="epochs: 2 in that run, 3 now"):
        teach(tiny_clip(), stream, out, epochs=3)
    assert teach(tiny_clip(), stream, out, epochs=2).finished
    assert not (tmp_path / ASIDE).exists()


@pytest.mark.slow
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("the disk is full")])
def test_a_run_comes_back_if_the_new_one_stops_before_it_has_anything_to_keep(
    replaced: tuple[Path, dict[str, bytes]],
    error: BaseException,
    stream: Stream,
    tmp_path: Path,
):
    out, before = replaced
    with pytest.raises(type(error)):
        teach(tiny_clip(), stream, out, epochs=2, overwrite=True, callback=Stop(1, error))
    assert files(out) == before
    assert not (tmp_path / ASIDE).exists()


@pytest.mark.slow
@pytest.mark.parametrize("begun", [True, False])
def test_a_run_that_a_killed_one_was_to_replace_is_not_lost_without_overwrite(
    begun: bool, replaced: tuple[Path, dict[str, bytes]], stream: Stream, tmp_path: Path
):
    """The new run was killed before its first step, or before its folder was there."""
    out, before = replaced
    out.rename(tmp_path / ASIDE)
    if begun:
        teach(tiny_clip(), stream, tmp_path / "other", epochs=2)
        (tmp_path / "other" / "results.json").unlink()
        (tmp_path / "other").rename(out)
    with pytest.raises(UserError, match="epochs: 1 in that run, 3 now"):
        teach(tiny_clip(), stream, out, epochs=3)
    assert files(out) == before
