"""A new run replaces another one, which comes back if the new one cannot start."""

import itertools
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from runs import CtrlC, Stop
from tiny import tiny_clip

import retouch
from retouch.data import Stream
from retouch.errors import UserError
from retouch.evaluate import Results
from retouch.files import checksummed
from retouch.methods import Settings, recipe
from retouch.methods.method_config import method_config
from retouch.train import Callback
from retouch.train.run_folder import set_aside
from retouch.train.run_folder.config_schema import result_settings


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


ASIDE = ".replaced"


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
        assert files(out / ASIDE) == before
        assert (out / "checkpoint.safetensors").exists()
    with pytest.raises(UserError, match="epochs: 2 in that run, 3 now"):
        teach(tiny_clip(), stream, out, epochs=3)
    assert teach(tiny_clip(), stream, out, epochs=2).finished
    assert not (out / ASIDE).exists()


@pytest.mark.slow
def test_what_others_put_beside_a_run_while_it_is_replaced_stays(
    replaced: tuple[Path, dict[str, bytes]], stream: Stream, tmp_path: Path
):
    """A folder with a name like that of one of ours, a note, and a file among the deltas."""
    out, before = replaced
    unrelated = tmp_path / ".run.replaced"
    unrelated.mkdir()
    (unrelated / "mine.txt").write_text("mine")

    class Note(Callback):
        def on_task_begin(self, task: int, steps: int) -> None:
            for name in ("note.txt", "deltas/note.txt", f"{ASIDE}/note.txt"):
                (out / name).write_text("mine")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        teach(tiny_clip(), stream, out, epochs=2, overwrite=True, callback=Note())
    notes = dict.fromkeys(("note.txt", "deltas/note.txt", f"{ASIDE}/note.txt"), b"mine")
    assert files(out) == before | notes
    assert files(unrelated) == {"mine.txt": b"mine"}


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


@pytest.mark.slow
@pytest.mark.parametrize("begun", [True, False])
def test_a_run_that_a_killed_one_was_to_replace_is_not_lost_without_overwrite(
    begun: bool, replaced: tuple[Path, dict[str, bytes]], stream: Stream, tmp_path: Path
):
    """The new run was killed before its first step, or before its folder was there."""
    out, before = replaced
    out.rename(tmp_path / "old")
    out.mkdir()
    if begun:
        teach(tiny_clip(), stream, out, epochs=2)
        (out / "results.json").unlink()
    (tmp_path / "old").rename(out / ASIDE)
    with pytest.raises(UserError, match="epochs: 1 in that run, 3 now"):
        teach(tiny_clip(), stream, out, epochs=3)
    assert files(out) == before


IDENTITY = {"images": 1, "files": "", "labels": "", "classes": 1}
CONFIG = {
    "method": method_config(recipe("frozen")),
    "settings": result_settings(Settings()),
    "data": {
        "prompt": "{}",
        "templates": ["{}"],
        "classes": ["cat"],
        "tasks": [["cat"]],
        "images": [1],
        "choices": "seen",
        "twins": "separate",
        "domains": [],
    },
    "train": IDENTITY,
    "test": IDENTITY,
    "control": None,
    "reference": None,
    "learned before": 0,
    "places": {"model": "", "train": "", "test": "", "control": None, "reference": None},
}
"""A run's config, but for the weights."""


class Killed(BaseException):
    """From some moment on, nothing changes on the disk any more."""


def kill_after(operations: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this many changes to folders through, and then no more."""
    left = [operations]

    def bounded(real: Any) -> Any:
        def operation(*args: Any, **more: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return real(*args, **more)

        return operation

    for name in ("mkdir", "replace", "rename", "unlink", "rmdir"):
        monkeypatch.setattr(os, name, bounded(getattr(os, name)))


def write_files(folder: Path, name: str) -> None:
    """A run in which every file tells whose it is; its config comes last, as a run writes it."""
    for file in ("metrics.jsonl", "deltas/task-01.safetensors", "images/index.json"):
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(name)
    checksummed.write_yaml(folder / "config.yaml", {**CONFIG, "weights": name})


def create_run(folder: Path) -> None:
    set_aside.create_run(folder, lambda part: write_files(part, "new"))


def replace_run(folder: Path) -> None:
    set_aside.set_aside(folder)
    create_run(folder)


OLD, NEW, BOTH = {"old"}, {"new"}, {"new", ".replaced/old"}


@pytest.mark.parametrize(
    ("action", "start", "ends"),
    [
        (replace_run, OLD, [OLD, BOTH]),
        (set_aside.restore, BOTH, [BOTH, OLD]),
        (set_aside.discard_aside, BOTH, [BOTH, NEW]),
        (set_aside.restore, NEW, [NEW, set()]),
        (create_run, set(), [NEW, set()]),
        (replace_run, BOTH, [BOTH, OLD]),
    ],
)
def test_killed_at_any_moment_a_folder_holds_whole_runs(
    action: Callable[[Path], None], start: set[str], ends: list[set[str]], tmp_path: Path
):
    """And with that, the next command goes on; nothing of one run is in another."""
    reached = []
    for operations in itertools.count():
        folder = tmp_path / str(operations)
        folder.mkdir()
        for place in start:
            (folder / place).parent.mkdir(exist_ok=True)
            write_files((folder / place).parent, Path(place).name)
        with pytest.MonkeyPatch.context() as patch:
            kill_after(operations, patch)
            try:
                action(folder)
                finished = True
            except Killed:
                finished = False
        if not finished and operations % 2:  # what repairs it may be killed, too
            with pytest.MonkeyPatch.context() as patch, suppress(Killed):
                kill_after(operations // 3, patch)
                set_aside.recover(folder)
        set_aside.recover(folder)
        found = runs_in(folder)
        assert found in ends, (operations, found, files(folder))
        reached.append(found)
        if finished:
            break
    assert all(end in reached for end in ends)


def runs_in(folder: Path) -> set[str]:
    """The runs in a folder, which must be whole, without anything else."""
    found = files(folder)
    names = {text.decode() for name, text in found.items() if name.endswith("metrics.jsonl")}
    places = {".replaced/old" if len(names) > 1 and name == "old" else name for name in names}
    expected: dict[str, bytes] = {}
    for place in places:
        whole = folder.with_name(f"whole {Path(place).name}")
        if not whole.exists():
            whole.mkdir()
            write_files(whole, Path(place).name)
        prefix = f"{Path(place).parent}/" if "/" in place else ""
        expected |= {prefix + name: text for name, text in files(whole).items()}
    assert found == expected
    return places
