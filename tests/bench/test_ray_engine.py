"""Cells on a Ray cluster: the same numbers, even if a worker is killed or sees no shared disk."""

import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from layouts import make_folder
from letters_bench import TWO_METHODS, letters_bench, numbers

from retouch.bench import CellResult, Incomplete, engine
from retouch.bench.engines.events import Event, Note, Progress
from retouch.bench.engines.ray import _connect
from retouch.errors import UserError


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[None]:
    """A local Ray of two workers, started in a folder with modules that must not be imported."""
    ray = pytest.importorskip("ray")
    ran = tmp_path / "ran"
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    for name in ("torch", "numpy", "letters", "yaml"):
        (hostile / f"{name}.py").write_text(f"open({str(ran)!r}, 'a').write(__file__)")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(hostile)
        # Workers inherit it, for the tests' model. With a runtime_env they would start more slowly.
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setattr(ray, "init", partial(ray.init, num_cpus=2, include_dashboard=False))
        assert _connect("local") == (ray, True)
        yield
        ray.shutdown()
    assert not ran.exists(), ran.read_text()


ONE_METHOD = TWO_METHODS.only(["er"])
"""For a single cell, the worker of an earlier one is there: none has to be started."""


class Killer:
    """Records events, and kills the worker of ER's cell in its first task, once."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._killed = False

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if self._killed or not isinstance(event, Progress) or not event.cell.startswith("ER,"):
            return
        if event.status.startswith("task 1/2"):
            os.kill(event.pid, signal.SIGKILL)
            self._killed = True


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_cluster_of_two_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """All in one test: a cluster takes longer to start than its cells to run."""
    classes = {"red": 9, "green": 9, "dark blue": 9, "bright blue": 9}
    photos = make_folder(tmp_path / "my photos", classes)
    serial = numbers(letters_bench(tmp_path / "serial", photos).run())
    monkeypatch.setattr("retouch.bench.engines.ray.POLL_SECONDS", 0.05)
    check_a_killed_worker(tmp_path / "killed", photos, serial)
    check_another_version(tmp_path / "version", photos)
    check_workers_without_the_folder(tmp_path / "elsewhere", photos, serial)


def check_a_killed_worker(out: Path, photos: Path, serial: dict[str, object]) -> None:
    killer = Killer()
    assert numbers(letters_bench(out, photos).run(engine("ray"), killer)) == serial
    (note,) = [event for event in killer.events if isinstance(event, Note)]
    assert "its worker died" in note.text
    assert not list(out.glob("**/.seen"))
    again: list[Event] = []
    assert numbers(letters_bench(out, photos).run(engine("ray"), again.append)) == serial
    assert all(isinstance(event, CellResult) and event.earlier for event in again)


def check_another_version(out: Path, photos: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("retouch.bench.engines.ray.VERSIONS", {"retouch": "9.9"})
        with pytest.raises(UserError, match=r"has retouch .*, this machine has 9\.9"):
            engine("ray").call(os.getpid)
        with pytest.raises(Incomplete, match=r"this machine has 9\.9"):
            letters_bench(out, photos, ONE_METHOD).run(engine("ray"))


def check_workers_without_the_folder(out: Path, photos: Path, serial: dict[str, object]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("retouch.bench.engines.ray.MARKER", ".not-what-they-look-for")
        done = letters_bench(out, photos).run(engine("ray"))
        assert numbers(done) == serial
        folder = done[1].cell.folder(out)
        files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        assert files == {
            "cell.json",
            "done.json",
            "run/config.yaml",
            "run/metrics.jsonl",
            "run/results.json",
        }
        kept = letters_bench(out / "kept", photos, ONE_METHOD)
        kept.keep_deltas = True
        with pytest.raises(Incomplete, match="choose an output folder that all machines see"):
            kept.run(engine("ray"))


def test_without_ray(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'retouch\[ray\]'"):
        engine("ray")
