"""A cell on another machine: whether it sees the output folder, and the files it sends back."""

from pathlib import Path

from letters_bench import letters_bench

from retouch.bench.engines.events import Finished
from retouch.bench.engines.ray import RemoteJob, RemoteResult


def test_files_that_were_sent_are_written(tmp_path: Path):
    cell = letters_bench(tmp_path, Path("photos")).cells[0]
    files = {"done.json": b"{}", "run/results.json": b"[]"}
    RemoteResult(Finished(cell), files).write_files(tmp_path / "cell")
    assert (tmp_path / "cell" / "run" / "results.json").read_bytes() == b"[]"
    assert (tmp_path / "cell" / "done.json").read_bytes() == b"{}"


def test_a_worker_knows_the_output_folder_by_a_token(tmp_path: Path):
    bench = letters_bench(tmp_path, Path("photos"))
    job = RemoteJob(bench.cell_runner, bench.cells[0], "token", 1)
    assert not job.sees_output()
    (tmp_path / ".seen").write_text("another bench's")
    assert not job.sees_output()
    (tmp_path / ".seen").write_text("token")
    assert job.sees_output()
