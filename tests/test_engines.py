"""Cells in several processes and on Ray: the same numbers, whoever dies meanwhile."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from commands import run
from layouts import make_folder
from letters import letters_clip
from multiprocess import run_ranks
from rich.console import Console

from retouch.bench import Bench, Engine, Failed, Incomplete, Suite, engine, load_suite
from retouch.bench.cell import Cell, Options
from retouch.bench.datasets import BenchData, model_maker
from retouch.bench.engines import Done, Event, Finished, Listener, News, Note, WorkerLost
from retouch.bench.live_table import LiveTable, PlainView, progress_view
from retouch.bench.process_engine import LOG, ProcessEngine, gpus_for
from retouch.bench.remote import RemoteJob, RemoteResult
from retouch.errors import UserError

ROWS = [{"name": "still", "method": "frozen"}, {"name": "ER", "method": "er"}]
SUITE = Suite(title="Two methods", name="two", rows=ROWS)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    classes = {"red": 9, "green": 9, "dark blue": 9, "bright blue": 9}
    return make_folder(tmp_path_factory.mktemp("my photos"), classes)


def bench(out: Path, photos: Path, suite: Suite = SUITE, **options: object) -> Bench:
    field = BenchData(letters_clip, **options)
    asked = Options((str(photos),), control=str(photos), tasks=2, epochs=80, batch=4)
    return Bench(suite, field, "builtin", out, asked)


def numbers(done: list[Done]) -> dict[str, object]:
    return {
        d.cell.row: (d.results.matrix, [row.control for row in d.results.rows], d.whole)
        for d in done
    }


@pytest.fixture(scope="module")
def serial(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What one cell after the other gives."""
    found = numbers(bench(tmp_path_factory.mktemp("serial"), photos).run())
    assert found["still"] != found["ER"]
    return found


class Killer:
    """Hears the news, and kills the worker of ER's cell in its first task, once."""

    def __init__(self) -> None:
        self.heard: list[Event] = []
        self._killed = False

    def __call__(self, said: Event) -> None:
        self.heard.append(said)
        if not self._killed and begun(said):
            os.kill(said.pid, signal.SIGKILL)
            self._killed = True

    @property
    def notes(self) -> list[str]:
        return [said.text for said in self.heard if isinstance(said, Note)]


def begun(said: Event) -> bool:
    return isinstance(said, News) and said.cell[:3] == "ER," and said.doing.startswith("task 1/2")


# In processes of this machine.


def test_in_two_processes_one_of_which_is_killed(
    photos: Path, serial: dict[str, object], tmp_path: Path
):
    """And images are decoded by one of them, while the other waits for that."""
    made, jobs, killer = (
        bench(tmp_path, photos, cache=tmp_path / "cache"),
        ProcessEngine(2, "cpu"),
        Killer(),
    )
    jobs.here = False  # as if it did not see what its workers see
    assert numbers(made.run(jobs, killer)) == serial
    (note,) = killer.notes
    assert "its process was killed (SIGKILL" in note
    pids = {said.pid for said in killer.heard if isinstance(said, News)}
    assert len(pids) == 3
    assert os.getpid() not in pids
    logs = [(cell.folder(tmp_path) / LOG).read_text() for cell in made.cells]
    assert "".join(logs).count("Decoding") == 1


class Unlucky(Engine):
    """Whose workers die as often as it is told; no process is needed for that."""

    size = 2

    def __init__(self, deaths: dict[str, int]) -> None:
        self._deaths, self._given, self.started = deaths, [], []

    @property
    def busy(self) -> int:
        return len(self._given)

    def start(self, bench: Bench, cell: Cell) -> None:
        self._given.append(cell)
        self.started.append(cell.row)
        assert self.busy <= self.size

    def wait(self, tell: Listener) -> list[Finished | Failed | WorkerLost]:
        cell = self._given.pop(0)
        if self._deaths.get(cell.row, 0) >= self.started.count(cell.row):
            return [WorkerLost(cell, "it died")]
        return [Failed(cell, "a mistake")] if cell.row == "wrong" else [Finished(cell)]


def test_a_cell_is_tried_three_times_and_a_mistake_once(photos: Path):
    rows = [{"name": name, "method": "frozen"} for name in ("never", "wrong", "third", "fine")]
    made = bench(Path("x"), photos, Suite(title="t", rows=rows))
    unlucky, heard = Unlucky({"never": 9, "third": 2}), []
    ends = {end.cell.row: end for end in unlucky.run(made, made.cells, heard.append)}
    assert {row: type(end) for row, end in ends.items()} == {
        "never": Failed,
        "wrong": Failed,
        "third": Finished,
        "fine": Finished,
    }
    assert ends["never"].why == "it died, 3 times"
    tries = {row: unlucky.started.count(row) for row in ends}
    assert tries == {"never": 3, "wrong": 1, "third": 3, "fine": 1}
    assert len([said for said in heard if isinstance(said, Note)]) == 4


def test_images_are_decoded_before_cells_are_started(photos: Path, tmp_path: Path):
    decoded: list[str] = []

    def progress(parts, what, total):
        decoded.append(what)
        return parts

    class Late(Unlucky):
        def start(self, bench: Bench, cell: Cell) -> None:
            assert len(decoded) == 1
            super().start(bench, cell)

    late, made = Late({}), bench(tmp_path, photos, cache=tmp_path / "cache", progress=progress)
    with pytest.raises(Incomplete, match="2 of 2 cells failed"):
        made.run(late)  # which finds nothing
    assert late.started == ["still", "ER"]
    assert len(decoded) == 1


def test_ctrl_c_saves_what_is_under_way(photos: Path, serial: dict[str, object], tmp_path: Path):
    def tell(said: Event) -> None:
        heard.append(said)
        if begun(said):
            raise KeyboardInterrupt

    heard: list[Event] = []
    made = bench(tmp_path, photos, SUITE.only(["er"]))
    with pytest.raises(KeyboardInterrupt):
        made.run(ProcessEngine(2, "cpu"), tell)
    assert heard[-1] == Note("stopping; saving the cell under way. Ctrl-C again stops at once")
    run = made.cells[0].folder(tmp_path) / "run"
    assert (run / "checkpoint.safetensors").exists()
    assert numbers(made.run()) == {"ER": serial["ER"]}


def test_a_grid_that_is_killed_goes_on(tmp_path: Path):
    """By another engine too; the workers of the one that was killed do not live on."""
    field = BenchData(model_maker("builtin", "cpu"), reference="builtin", small=True)
    options = Options(tasks=2, epochs=2, replay=50)
    made = Bench(load_suite("demo").only(["spu"]), field, "builtin", tmp_path / "a", options)
    words = ["bench", "demo", "--methods", "spu", "--model", "builtin", "--quick", "--tasks", 2]
    words += ["--epochs", 2, "--jobs", 2, "--out", made.out]
    started = subprocess.Popen(
        [sys.executable, "-m", "retouch", *map(str, words)],
        env={**os.environ, "OMP_NUM_THREADS": "2"},
    )
    (cell,) = made.cells
    lines = cell.folder(made.out) / "run" / "metrics.jsonl"
    while not lines.exists():
        assert started.poll() is None
        time.sleep(0.02)
    started.kill()
    started.wait()
    time.sleep(0.3)  # for its worker to notice
    before = lines.read_text()
    time.sleep(0.7)
    assert lines.read_text() == before
    assert made.finished(cell) is None
    assert numbers(made.run()) == numbers(replace(made, out=tmp_path / "b").run())


def test_gpus_are_shared_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpus_for("auto") == gpus_for("cuda") == ["0", "1", "2"]
    assert gpus_for("cuda:1") == gpus_for("cpu") == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    assert gpus_for("auto") == ["2", "5"]


# On Ray.


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A local Ray of two workers."""
    ray = pytest.importorskip("ray")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    found = {"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path)}}  # the model of these tests
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    ray.init("local", num_cpus=2, runtime_env=found, **quiet)
    yield
    ray.shutdown()


@pytest.mark.usefixtures("cluster")
def test_on_a_ray_of_two_workers_one_of_which_is_killed(
    photos: Path, serial: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("retouch.bench.ray_engine.POLL", 0.05)
    killer = Killer()
    assert numbers(bench(tmp_path, photos).run(engine("ray"), killer)) == serial
    (note,) = killer.notes
    assert "its worker died" in note
    assert not list(tmp_path.glob("**/.seen"))
    again: list[Event] = []
    assert numbers(bench(tmp_path, photos).run(engine("ray"), again.append)) == serial
    assert all(isinstance(said, Done) and said.earlier for said in again)


@pytest.mark.usefixtures("cluster")
def test_workers_that_do_not_see_the_folder_send_what_they_found(
    photos: Path, serial: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("retouch.bench.ray_engine.SEEN", ".not-what-they-look-for")
    done = bench(tmp_path, photos).run(engine("ray"))
    assert numbers(done) == serial
    folder = done[1].cell.folder(tmp_path)
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert found == {
        "cell.json",
        "done.json",
        "run/config.yaml",
        "run/metrics.jsonl",
        "run/results.json",
    }
    kept = bench(tmp_path / "kept", photos)
    kept.keep_deltas = True
    with pytest.raises(Incomplete, match="choose an --out that all machines see"):
        kept.run(engine("ray"))


@pytest.mark.usefixtures("cluster")
def test_another_version_on_a_worker_is_refused(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("retouch.bench.ray_engine.VERSIONS", {"retouch": "9.9"})
    with pytest.raises(UserError, match=r"has retouch .*, this machine has 9\.9"):
        engine("ray").ask(os.getpid)
    with pytest.raises(Incomplete, match=r"this machine has 9\.9"):
        bench(tmp_path, photos).run(engine("ray"))


@pytest.mark.usefixtures("cluster")
def test_the_command_on_ray(tmp_path: Path):
    words = ("--model", "builtin", "--methods", "frozen", "--quick", "--tasks", 1, "--on", "ray")
    done = run("bench", "demo", *words, "--out", tmp_path)
    assert "frozen, builtin, seed 0: task 1/1 new classes" in done.stdout
    assert "| frozen |" in (tmp_path / "table.md").read_text()


def test_what_was_sent_is_put_in_place(tmp_path: Path):
    made = bench(tmp_path, Path("photos"))
    (cell, *_) = made.cells
    RemoteResult(Finished(cell), {"done.json": b"{}", "run/results.json": b"[]"}).put(
        tmp_path / "cell"
    )
    assert (tmp_path / "cell" / "run" / "results.json").read_bytes() == b"[]"
    errand = RemoteJob(made, cell, "token", 1)
    assert not errand.sees()
    (tmp_path / ".seen").write_text("another grid's")
    assert not errand.sees()
    (tmp_path / ".seen").write_text("token")
    assert errand.sees()


# As a user meets it.


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--on", "slurm"], "say ray (a cluster here, or a new one) or ray://HOST:PORT"),
        (["--gpus-per-cell", "0.5"], "are for --on ray"),
        (["--on", "ray", "--device", "cuda:1"], "Ray chooses the GPU"),
    ],
)
def test_what_cannot_be_asked_for(words: list[str], said: str, tmp_path: Path):
    done = run("bench", "demo", "--model", "builtin", "--out", tmp_path, *words, code=1)
    assert said in " ".join(done.stderr.split())


def test_without_ray(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'retouch\[ray\]'"):
        engine("ray")


def test_the_live_table(tmp_path: Path):
    rows = [{"name": f"row {i}", "method": "frozen"} for i in range(40)]
    cells = bench(tmp_path, Path("photos"), Suite(title="t", rows=rows)).cells
    console = Console(force_terminal=True, width=120, height=20, record=True)
    table = progress_view(cells, console)
    assert isinstance(table, LiveTable)
    titles = [cell.title for cell in cells]
    with table:
        table(News(titles[1], "task 1/2, epoch 1/1", "process 7", 7))
        table(News(titles[2], "task 1/2", "process 8", 8))
        table(Note("its process was killed", titles[2]))
        table(Failed(cells[30], "the loss became nan"))
    with console.capture() as shown:
        console.print(table.table())
    text = shown.get()
    assert "row 1, photos, seed 0" in text
    assert "running 0:00" in text
    assert "task 1/2, epoch 1/1" in text
    assert "process 7" in text
    assert "process 8" not in text
    assert "waiting (try 2)" in text
    assert "the loss became nan" in text
    assert "row 39" not in text
    assert "38 waiting, 1 running, 1 failed" in text
    assert len(text.splitlines()) <= 20


def test_lines_where_there_is_no_terminal():
    console = Console(force_terminal=False, width=120, record=True)
    lines = progress_view([], console)
    assert isinstance(lines, PlainView)
    with console.capture() as shown:
        lines(News("a", "task 1/2", "", 1))
        lines(News("a", "task 1/2 new classes 50.0 %", "", 1, judged=True))
        lines(Note("it died; it is tried again", "a"))
    assert shown.get() == "a: task 1/2 new classes 50.0 %\na: it died; it is tried again\n"
    assert not isinstance(progress_view([], console, quiet=True), PlainView | LiveTable)


def in_company(out: Path, photos: Path) -> dict[str, object]:
    """What this one of several processes has in the end."""
    return numbers(bench(out, photos).run())


def test_several_processes_learn_each_cell_together(
    serial: dict[str, object], photos: Path, tmp_path: Path
):
    """As torchrun starts them; the first has what was found, and nothing is run again."""
    found = run_ranks(2, in_company, tmp_path / "there", photos)
    assert found[1] == {}
    assert found[0].keys() == serial.keys()
    assert found[0]["still"] == serial["still"]
    assert found[0]["ER"][0][0] == serial["ER"][0][0], "before anything was learned"
    assert [len(row) for row in found[0]["ER"][0]] == [len(row) for row in serial["ER"][0]]
    done = list((tmp_path / "there").rglob("done.json"))
    before = [file.stat().st_mtime_ns for file in done]
    assert run_ranks(2, in_company, tmp_path / "there", photos)[0] == found[0]
    assert [file.stat().st_mtime_ns for file in done] == before
    assert numbers(bench(tmp_path / "there", photos).run()) == found[0]
