"""Cells in processes of this machine: the same numbers, even if a process is killed."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from forked import Forked
from layouts import make_folder
from letters_bench import TWO_METHODS, letters_bench, numbers

from retouch.bench.engines import processes
from retouch.bench.engines.events import Event, Note, Progress
from retouch.bench.engines.processes import LOG, ProcessEngine, gpus_for


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    classes = {"red": 9, "green": 9, "dark blue": 9, "bright blue": 9}
    return make_folder(tmp_path_factory.mktemp("my photos"), classes)


@pytest.fixture(scope="module")
def serial(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """The numbers of one cell after another."""
    return numbers(letters_bench(tmp_path_factory.mktemp("serial"), photos).run())


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers need not import torch; `test_hostile_folder.py` spawns them, as users do."""
    fork = multiprocessing.get_context("fork")
    monkeypatch.setattr(processes, "get_context", lambda kind: fork)


def trains(event: Event) -> bool:
    """Whether the cell of ER trains its first task."""
    return (
        isinstance(event, Progress)
        and event.cell.startswith("ER,")
        and event.status.startswith("task 1/2")
    )


def recorder(events: list[Event], react: Callable[[Progress], None]) -> Callable[[Event], None]:
    """A listener that records events, and reacts once when ER trains."""

    def listener(event: Event) -> None:
        first = trains(event) and not any(map(trains, events))
        events.append(event)
        if first:
            react(event)

    return listener


@pytest.mark.slow
@pytest.mark.usefixtures("forks")
def test_two_processes_one_of_which_is_killed(
    photos: Path, serial: dict[str, object], tmp_path: Path
):
    """One of them decodes the images, while the other waits for that."""
    bench = letters_bench(tmp_path, photos, cache=tmp_path / "cache")
    engine, events = ProcessEngine(2, "cpu"), list[Event]()
    engine.shares_disks = False
    listener = recorder(events, lambda progress: os.kill(progress.pid, signal.SIGKILL))
    assert numbers(bench.run(engine, listener)) == serial
    (note,) = [event for event in events if isinstance(event, Note)]
    assert "its process was killed (SIGKILL" in note.text
    pids = {event.pid for event in events if isinstance(event, Progress)}
    assert len(pids) == 3
    assert os.getpid() not in pids
    logs = [(cell.folder(tmp_path) / LOG).read_text() for cell in bench.cells]
    assert "".join(logs).count("Decoding") == 1


@pytest.mark.slow
@pytest.mark.usefixtures("forks")
def test_ctrl_c_saves_a_checkpoint(photos: Path, serial: dict[str, object], tmp_path: Path):

    def interrupt(progress: Progress) -> None:
        raise KeyboardInterrupt

    events: list[Event] = []
    bench = letters_bench(tmp_path, photos, TWO_METHODS.only(["er"]))
    with pytest.raises(KeyboardInterrupt):
        bench.run(ProcessEngine(2, "cpu"), recorder(events, interrupt))
    assert events[-1] == Note("stopping; saving the running cell. Ctrl-C again stops at once")
    assert (bench.cells[0].run(tmp_path) / "checkpoint.safetensors").exists()
    assert numbers(bench.run()) == {"ER": serial["ER"]}


@pytest.mark.slow
@pytest.mark.usefixtures("forks")
def test_a_bench_that_is_killed_is_resumed(photos: Path, serial: dict[str, object], tmp_path: Path):
    """By another engine too; the workers of the killed one end with it."""
    bench = letters_bench(tmp_path / "a", photos, TWO_METHODS.only(["er"]))
    program = Forked(tmp_path / "printed", lambda: bench.run(ProcessEngine(2, "cpu")))
    (cell,) = bench.cells
    steps = cell.run(bench.out) / "metrics.jsonl"
    while not steps.exists():
        assert program.process.is_alive()
        time.sleep(0.01)
    program.process.kill()
    program.process.join()
    time.sleep(0.3)  # for its worker to notice
    before = steps.read_text()
    time.sleep(0.5)
    assert steps.read_text() == before
    assert bench.cell_runner.finished(cell) is None
    assert numbers(bench.run()) == {"ER": serial["ER"]}


def test_gpus_are_divided_among_processes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpus_for("auto") == gpus_for("cuda") == ["0", "1", "2"]
    assert gpus_for("cuda:1") == gpus_for("cpu") == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    assert gpus_for("auto") == ["2", "5"]
