"""What all engines share: order, retries, decoding once; and which engine options ask for."""

from pathlib import Path

import pytest
from layouts import make_folder
from letters_bench import letters_bench, numbers
from rank_processes import run_ranks

from retouch.bench import Engine, Failed, Incomplete, Suite, engine
from retouch.bench.cell import Cell
from retouch.bench.cell_runner import CellRunner
from retouch.bench.engines.events import Event, Finished, Listener, Note, Outcome, WorkerLost
from retouch.errors import UserError


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    classes = {"red": 9, "green": 9, "dark blue": 9, "bright blue": 9}
    return make_folder(tmp_path_factory.mktemp("my photos"), classes)


class Unlucky(Engine):
    """An engine whose workers die as often as it is told; it needs no processes."""

    size = 2

    def __init__(self, deaths: dict[str, int]) -> None:
        self._deaths, self._running = deaths, []
        self.started: list[str] = []

    @property
    def busy(self) -> int:
        return len(self._running)

    def start(self, runner: CellRunner, cell: Cell) -> None:
        self._running.append(cell)
        self.started.append(cell.row)
        assert self.busy <= self.size

    def wait(self, listener: Listener) -> list[Outcome]:
        cell = self._running.pop(0)
        if self._deaths.get(cell.row, 0) >= self.started.count(cell.row):
            return [WorkerLost(cell, "it died")]
        return [Failed(cell, "a mistake")] if cell.row == "wrong" else [Finished(cell)]


def test_a_lost_cell_is_tried_three_times_and_a_failed_one_once(photos: Path):
    names = ("never", "wrong", "third", "fine")
    rows = tuple({"name": name, "method": "frozen"} for name in names)
    bench = letters_bench(Path("x"), photos, Suite(title="t", rows=rows))
    unlucky, events = Unlucky({"never": 9, "third": 2}), list[Event]()
    outcomes = {
        outcome.cell.row: outcome
        for outcome in unlucky.run(bench.cell_runner, bench.cells, events.append)
    }
    assert {row: type(outcome) for row, outcome in outcomes.items()} == {
        "never": Failed,
        "wrong": Failed,
        "third": Finished,
        "fine": Finished,
    }
    assert outcomes["never"].reason == "it died, 3 times"
    tries = {row: unlucky.started.count(row) for row in outcomes}
    assert tries == {"never": 3, "wrong": 1, "third": 3, "fine": 1}
    assert len([event for event in events if isinstance(event, Note)]) == 4


def test_images_are_decoded_before_cells_are_started(photos: Path, tmp_path: Path):
    decoded: list[str] = []

    def progress(parts, what, total):
        decoded.append(what)
        return parts

    class Late(Unlucky):
        def start(self, runner: CellRunner, cell: Cell) -> None:
            assert len(decoded) == 1
            super().start(runner, cell)

    late = Late({})
    bench = letters_bench(tmp_path, photos, cache=tmp_path / "cache", progress=progress)
    with pytest.raises(Incomplete, match="2 of 2 cells failed"):
        bench.run(late)  # which writes nothing
    assert late.started == ["still", "ER"]
    assert len(decoded) == 1


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"on": "slurm"}, r"on='slurm': use 'ray' .* or 'ray://HOST:PORT'"),
        ({"gpus_per_cell": 0.5}, "only for Ray"),
        ({"on": "ray", "device": "cuda:1"}, "Ray chooses the GPU"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, object], problem: str):
    with pytest.raises(UserError, match=problem):
        engine(**options)


def run_bench(out: Path, photos: Path) -> dict[str, object]:
    return numbers(letters_bench(out, photos, epochs=4).run())


@pytest.mark.slow
def test_several_ranks_train_each_cell_together(photos: Path, tmp_path: Path):
    """Rank 0 has the results, and nothing is run again."""
    serial = run_bench(tmp_path / "serial", photos)
    out = tmp_path / "ranks"
    ranks = run_ranks(2, run_bench, out, photos)
    assert ranks[1] == {}
    assert ranks[0].keys() == serial.keys()
    assert ranks[0]["still"] == serial["still"]
    assert ranks[0]["ER"][0][0] == serial["ER"][0][0], "before anything was learned"
    assert [len(row) for row in ranks[0]["ER"][0]] == [len(row) for row in serial["ER"][0]]
    records = list(out.rglob("done.json"))
    before = [file.stat().st_mtime_ns for file in records]
    assert run_ranks(2, run_bench, out, photos)[0] == ranks[0]
    assert [file.stat().st_mtime_ns for file in records] == before
    assert run_bench(out, photos) == ranks[0]
