"""The folder of a run: what may be in it, and what a refused start leaves behind."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from runs import Stop, content, teach

from retouch.errors import UserError
from retouch.train import Callback


@pytest.mark.slow
def test_what_a_killed_start_left_behind_does_not_matter(
    tmp_path: Path, whole_run: Callable[[str], tuple[Path, str]]
):
    """A folder appears with its config; what was killed before that is deleted."""
    whole, expected = whole_run("spu")
    left = tmp_path / ".killed.part"
    (left / "deltas").mkdir(parents=True)
    (left / "config.yaml").write_text("half")
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
