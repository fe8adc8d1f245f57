"""Only one process at a time writes a run."""

import multiprocessing
import os
import platform
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from commands import run
from continued_runs import march
from rank_processes import run_ranks_or_errors

from retouch.errors import UserError
from retouch.evaluate import Results
from retouch.files.lock import exclusive_lock
from retouch.train import Callback


class Meanwhile(Callback):
    """Does something at the first step."""

    def __init__(self, action: Callable[[], None]) -> None:
        self.action: Callable[[], None] | None = action

    def on_step(self, step: int, epoch: int, loss: float) -> None:
        if self.action:
            self.action, action = None, self.action
            action()


def refusal(call: Callable[[], Any]) -> str:
    try:
        call()
    except UserError as why:
        return str(why)
    return "nothing was refused"


def in_a_thread(call: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


@pytest.mark.slow
def test_a_second_run_in_the_same_folder_is_refused(model: Path, tmp_path: Path):
    out, link = tmp_path / "runs" / "march", tmp_path / "link"
    words = ("learn", tmp_path / "nothing", "--model", "nothing", "--out", out)
    messages: list[str] = []

    def again() -> None:
        link.symlink_to(out)
        messages.append(in_a_thread(lambda: refusal(lambda: march(model, out))))
        messages.append(in_a_thread(lambda: run(*words, code=1).stderr))
        for ranks, folder in ((1, out), (1, link), (2, out)):
            answers = run_ranks_or_errors(ranks, lambda: march(model, folder), join=ranks > 1)  # noqa: B023
            messages.extend(map(str, answers))
        assert Results.read(out).begun  # reading does not wait

    assert march(model, out, callback=Meanwhile(again))[0].finished
    assert len(messages) == 6
    holder = f"in use by another `retouch learn` (process {os.getpid()} on {platform.node()}, since"
    for message in messages:
        assert holder in message
        assert "choose another folder" in message
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["march"]
    assert march(model, out)[0].finished


def test_the_lock_is_in_the_folder_for_everybody(tmp_path: Path):
    """One who can write nowhere else finds the lock of one who can, and the other way round."""
    if os.geteuid():
        pytest.skip("needs a second user")
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "run"
        folder.mkdir()
        for path, mode in ((folder.parent, 0o755), (folder, 0o777)):
            path.chmod(mode)
        processes = multiprocessing.get_context("fork")
        answers = processes.Queue()
        for first, second in ((0, 65534), (65534, 0)):
            process = processes.Process(target=lock_as, args=(first, second, folder, answers))
            process.start()
            assert "is in use by another" in answers.get(timeout=30)
            process.join()
        assert not list(folder.iterdir())


def lock_as(first: int, second: int, folder: Path, answers: Any) -> None:
    """Hold the lock as one user, and try to take it as another."""
    os.seteuid(first)
    with exclusive_lock(folder):
        os.seteuid(0)
        os.seteuid(second)
        answers.put(in_a_thread(lambda: refusal(lambda: exclusive_lock(folder).__enter__())))
        os.seteuid(0)
        os.seteuid(first)


def hold(folder: Path, held: Any) -> None:
    with exclusive_lock(folder):
        held.set()
        time.sleep(60)


@pytest.mark.slow
def test_a_lock_of_a_killed_process_does_not_block(model: Path, tmp_path: Path):
    processes = multiprocessing.get_context("fork")
    held = processes.Event()
    process = processes.Process(target=hold, args=(tmp_path / "run", held))
    process.start()
    assert held.wait(30)
    with pytest.raises(UserError, match=f"process {process.pid} on"):
        march(model, tmp_path / "run")
    process.kill()
    process.join()
    left = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert left == [".lock", ".lock.json"]
    with pytest.raises(ZeroDivisionError):  # which fails, and releases the lock
        march(model, tmp_path / "run", callback=Meanwhile(lambda: 1 / 0))  # type: ignore[arg-type, return-value]
    assert march(model, tmp_path / "run")[0].finished
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
