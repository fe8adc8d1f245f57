"""A run that is killed after its last task is completed by the same call."""

from pathlib import Path
from typing import Any

import pytest
from continued_runs import GIVEN, halves
from runs import content

import retouch
from retouch.sparse import fingerprint
from retouch.train.run_folder import finish


def april(before: Path, out: Path, **more: Any) -> Any:
    return retouch.continue_run(before, *halves()[1], out=out, **{**GIVEN, **more})


@pytest.fixture(scope="module")
def whole(taught_in_march: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The continued run, not killed."""
    folder = tmp_path_factory.mktemp("whole") / "april"
    april(taught_in_march, folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("step", ["compare_run", "write_images", "remove_earlier_copy"])
def test_killed_while_finishing_it_is_finished_later(
    step: str,
    model: Path,
    march_folder: Path,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    expected = fingerprint(retouch.open_run(whole).load_task().model)

    def kill(*given: Any, **more: Any) -> None:
        if step == "compare_run":
            given[0].load_task(0)  # halfway through, the model is that before the first task
        raise KeyboardInterrupt

    own = retouch.load(str(model))
    with monkeypatch.context() as patch:
        patch.setattr(finish, step, kill)
        with pytest.raises(KeyboardInterrupt):
            april(march_folder, tmp_path / "cut", model=own)
    assert fingerprint(own.model) == expected, "the caller gets the model as it was taught"
    april(march_folder, tmp_path / "cut")
    assert content(tmp_path / "cut") == content(whole)
