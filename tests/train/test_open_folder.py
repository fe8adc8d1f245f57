"""The folder of a run: what may be in it, and what a refused start leaves behind."""

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from runs import Stop, content, teach
from tiny import images, tiny_clip

import retouch
from retouch.data import Stream
from retouch.errors import UserError
from retouch.methods import Settings
from retouch.train import Callback


@pytest.mark.slow
def test_what_a_killed_start_left_behind_does_not_matter(
    tmp_path: Path, whole_run: Callable[[str], tuple[Path, str]]
):
    """A run is there once its config is; what was killed before that is deleted."""
    whole, expected = whole_run("spu")
    left = tmp_path / "killed" / ".new"
    (left / "deltas").mkdir(parents=True)
    (left / ".config.yaml.part").write_text("half")
    (tmp_path / "killed" / ".lock").touch()
    assert teach(tmp_path / "killed")[1] == expected
    assert content(tmp_path / "killed") == content(whole)
    assert not left.exists()


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="not empty and holds no run"):
        teach(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


@pytest.mark.slow
def test_a_damaged_run_can_be_overwritten(tmp_path: Path):
    with pytest.raises(ZeroDivisionError):
        teach(tmp_path, callback=Stop(5, ZeroDivisionError()))
    (tmp_path / "config.yaml").write_text("{")
    with pytest.raises(UserError, match=r"config\.yaml is damaged"):
        teach(tmp_path)
    assert teach(tmp_path, overwrite=True)[0].finished


def test_a_run_refused_before_it_trains_leaves_no_folder(tmp_path: Path):
    class Refuse(Callback):
        def __enter__(self) -> "Refuse":
            raise UserError("no reason")

    with pytest.raises(UserError, match="no reason"):
        teach(tmp_path / "run", callback=Refuse())
    assert not list(tmp_path.iterdir())


def test_a_finished_run_is_refused_with_the_argument_that_helps(
    tmp_path: Path, whole_run: Callable[[str], tuple[Path, str]]
):
    folder = shutil.copytree(whole_run("spu")[0], tmp_path / "run")
    with pytest.raises(UserError) as refused:
        teach(folder, "er")
    assert refused.value.argument == "overwrite=True"
    assert "--" not in str(refused.value)


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


FOREIGN = [
    "notes.txt",
    "march/config.yaml",
    "april/second/results.json",
    "deltas/mine.safetensors",
    "images/cat.png",
    "plots/mine.png",
    "earlier/notes.txt",
    "analysis/trace/notes.txt",
    ".hidden",
    ".replaced/notes.txt",
]


@pytest.mark.parametrize("name", FOREIGN)
def test_a_folder_with_anything_that_no_run_wrote_is_never_replaced(
    name: str, tmp_path: Path, whole_run: Callable[[str], tuple[Path, str]]
):
    folder = shutil.copytree(whole_run("spu")[0], tmp_path / "run")
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("years of work")
    before = files(folder)
    with pytest.raises(UserError, match=r"cannot be overwritten: besides the run") as refused:
        teach(folder, "er", overwrite=True)
    assert Path(name).parts[0] in str(refused.value)
    assert files(folder) == before


@pytest.mark.parametrize("overwrite", [True, False])
def test_neither_is_one_whose_run_has_learned_nothing(
    overwrite: bool, tmp_path: Path, whole_run: Callable[[str], tuple[Path, str]]
):
    """Killed at its start, with a finished run and notes beside its config."""
    whole = whole_run("spu")[0]
    (tmp_path / "deltas").mkdir()
    shutil.copyfile(whole / "config.yaml", tmp_path / "config.yaml")
    shutil.copytree(whole, tmp_path / "march")
    for number in range(4):
        (tmp_path / f"notes-{number}.txt").write_text("years of work")
    before = files(tmp_path)
    with pytest.raises(
        UserError, match=r"march, notes-0\.txt, notes-1\.txt and 2 more, which would"
    ):
        teach(tmp_path, "er", overwrite=overwrite)
    assert files(tmp_path) == before


def test_a_page_of_others_is_not_replaced_with_a_run(
    tmp_path: Path, whole_run: Callable[[str], tuple[Path, str]]
):
    folder = shutil.copytree(whole_run("spu")[0], tmp_path / "run")
    (folder / "report.html").write_text("my thesis")
    with pytest.raises(UserError, match=r"report\.html exists already, and retouch does not"):
        teach(folder, "er", overwrite=True)
    assert (folder / "report.html").read_text() == "my thesis"


def test_a_link_is_not_of_a_run(tmp_path: Path, whole_run: Callable[[str], tuple[Path, str]]):
    folder = shutil.copytree(whole_run("spu")[0], tmp_path / "run")
    (folder / "deltas").rename(tmp_path / "elsewhere")
    (folder / "deltas").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="besides the run it holds deltas"):
        teach(folder, "er", overwrite=True)


@pytest.mark.parametrize("more", [[], ["results.json"]])
def test_a_config_of_another_program_is_not_overwritten(more: list[str], tmp_path: Path):
    for name in ("config.yaml", *more):
        (tmp_path / name).write_text('{"colour": "blue"}')
    before = files(tmp_path)
    with pytest.raises(UserError, match="cannot be overwritten: it holds no run"):
        teach(tmp_path, overwrite=True)
    assert files(tmp_path) == before


def test_a_run_that_the_new_one_reads_is_not_overwritten(
    tmp_path: Path, whole_run: Callable[[str], tuple[Path, str]]
):
    folder = shutil.copytree(whole_run("spu")[0], tmp_path / "run")
    train = replace(images("train", 4, 6), name=str(folder / "examples"))
    stream = Stream.split(train, images("test", 4, 2), tasks=2, order=0)
    with pytest.raises(UserError, match=r"cannot be overwritten: train .*/examples lies in it"):
        retouch.teach(tiny_clip(), stream, settings=Settings(), out=folder, overwrite=True)


@pytest.mark.slow
def test_through_a_link_it_is_the_same_folder(
    tmp_path: Path, whole_run: Callable[[str], tuple[Path, str]]
):
    target = shutil.copytree(whole_run("spu")[0], tmp_path / "target")
    link = tmp_path / "link"
    link.symlink_to(target)
    messages: list[str] = []

    class Second(Callback):
        """Starts a second run in the same folder, by another name."""

        def on_task_begin(self, task: int, steps: int) -> None:
            for path in (target, link):
                with ThreadPoolExecutor(1) as pool, pytest.raises(UserError) as refused:
                    pool.submit(teach, path).result()
                messages.append(str(refused.value))

    assert teach(link, "er", overwrite=True, callback=Second())[0].finished
    assert len(messages) == 6
    assert all(f"{target} is in use by another" in message for message in messages)
    assert link.is_symlink()
    assert content(target) == content(whole_run("er")[0])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "target"]


def test_a_path_that_is_not_utf8_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match=r"not valid UTF-8; choose another"):
        teach(tmp_path / os.fsdecode(b"r\xff"))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_deltas_that_were_deleted_while_a_run_was_down(
    tmp_path: Path, whole_run: Callable[[str], tuple[Path, str]]
):
    """Before the first task there is none to miss; after it, the error says which."""
    whole = whole_run("spu")[0]
    with pytest.raises(ZeroDivisionError):
        teach(tmp_path / "run", callback=Stop(5, ZeroDivisionError()), checkpoint_seconds=0)
    shutil.rmtree(tmp_path / "run" / "deltas")
    with pytest.raises(ZeroDivisionError):
        teach(tmp_path / "run", callback=Stop(8, ZeroDivisionError()))
    delta = tmp_path / "run" / "deltas" / "task-01.safetensors"
    saved = delta.rename(tmp_path / "saved")
    with pytest.raises(
        UserError, match=r"task-01\.safetensors is missing, though .* learned task 1"
    ):
        teach(tmp_path / "run")
    saved.rename(delta)
    teach(tmp_path / "run")
    assert content(tmp_path / "run") == content(whole)
