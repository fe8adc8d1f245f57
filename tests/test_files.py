"""Files and folders are written whole or not at all, whoever else writes them."""

import fcntl
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillWaiting
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from retouch.errors import UserError
from retouch.files.write import atomic_folder, replace_folder, write_atomically


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_of_two_writers_of_a_file_the_second_waits(tmp_path: Path):
    """As if another process were halfway through the same file."""
    file, part = tmp_path / "a.json", tmp_path / ".a.json.part"
    with ThreadPoolExecutor(1) as pool:
        with part.open("wb") as theirs:
            fcntl.flock(theirs, fcntl.LOCK_EX)
            theirs.write(b"the content of the first")
            theirs.flush()
            second = pool.submit(write_atomically, file, b"second")
            with pytest.raises(StillWaiting):
                second.result(0.2)
            part.replace(file)
            assert file.read_bytes() == b"the content of the first"
        second.result(30)
    assert file.read_bytes() == b"second"
    assert names(tmp_path) == ["a.json"]


def test_half_a_file_of_a_killed_process_is_replaced(tmp_path: Path):
    (tmp_path / ".a.json.part").write_text("something long, half of it")
    write_atomically(tmp_path / "a.json", "short")
    assert (tmp_path / "a.json").read_text() == "short"
    assert names(tmp_path) == ["a.json"]


def write_folder(folder: Path, text: str) -> None:
    with atomic_folder(folder) as part:
        (part / "text").write_text(text)


def test_of_two_writers_of_a_folder_the_second_is_refused(tmp_path: Path):
    folder, link = tmp_path / "new", tmp_path / "link"
    link.symlink_to(folder)
    with atomic_folder(folder) as part, ThreadPoolExecutor(1) as pool:
        (part / "text").write_text("first")
        for path in (folder, link):
            with pytest.raises(UserError, match=f"{path} is in use by another .*{os.getpid()}"):
                pool.submit(write_folder, path, "second").result()
    assert names(folder) == ["text"]
    assert (folder / "text").read_text() == "first"
    assert names(tmp_path) == ["link", "new"]
    with pytest.raises(UserError, match="new exists already"):
        write_folder(folder, "third")


def die(folder: Path, at: str) -> None:
    real = os.replace

    def replace(*args: Any) -> None:
        if at == "after":
            real(*args)
        os.kill(os.getpid(), signal.SIGKILL)

    os.replace = replace
    write_folder(folder, "killed")


@pytest.mark.parametrize("at", ["before", "after"])
def test_a_killed_process_leaves_nothing_that_is_in_the_way(at: str, tmp_path: Path):
    """Killed before its folder is moved to its place, or right after."""
    folder = tmp_path / "new"
    process = get_context("fork").Process(target=die, args=(folder, at))
    process.start()
    process.join(30)
    assert process.exitcode == -signal.SIGKILL
    if at == "before":
        write_folder(folder, "again")
    else:
        with pytest.raises(UserError, match="new exists already"):
            write_folder(folder, "again")
    assert (folder / "text").read_text() == ("again" if at == "before" else "killed")
    assert names(tmp_path) == ["new"]


def test_an_empty_folder_with_what_a_killed_process_left_is_empty(tmp_path: Path):
    folder = tmp_path / "new"
    folder.mkdir()
    (folder / ".lock").touch()
    (folder / ".DS_Store").touch()
    write_folder(folder, "text")
    assert names(folder) == ["text"]


def test_a_folder_of_others_with_the_temporary_name_stays(tmp_path: Path):
    theirs = tmp_path / ".new.part"
    theirs.mkdir()
    (theirs / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match=r"\.new\.part exists already, and retouch does not"):
        write_folder(tmp_path / "new", "text")
    assert names(theirs) == ["mine.txt"]
    assert names(tmp_path) == [".new.part"]


def test_a_failure_leaves_nothing(tmp_path: Path):
    def fail() -> None:
        with atomic_folder(tmp_path / "a" / "new") as part:
            (part / "deep").mkdir()
            (part / "deep" / "text").touch()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not names(tmp_path)


def test_a_folder_is_not_replaced_with_files_of_others_in_it(tmp_path: Path):
    part, folder = tmp_path / ".images.part", tmp_path / "images"
    for path in (part, folder):
        path.mkdir()
        (path / "1.png").write_text(path.name)
    (folder / "mine.png").touch()
    with pytest.raises(UserError, match=r"images/mine\.png exists already"):
        replace_folder(part, folder, ("[0-9].png",))
    assert names(folder) == ["1.png", "mine.png"]
    (folder / "mine.png").unlink()
    replace_folder(part, folder, ("[0-9].png",))
    assert (folder / "1.png").read_text() == ".images.part"
