"""Opening a run: its model after any task, and what is refused."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tiny import tiny_clip, tiny_folder
from torch import Tensor

from retouch.errors import UserError
from retouch.files import checksummed
from retouch.sparse import fingerprint, fingerprints
from retouch.train import open_run

WholeRun = Callable[[str], tuple[Path, str]]


def test_the_model_after_any_task(model: Path, march_folder: Path):
    run = open_run(march_folder, model=str(model))
    with pytest.raises(UserError, match="has learned 1 task, not 2"):
        run.load_task(2)
    before = fingerprint(run.clip.model)
    run.load_task(1)
    assert fingerprint(run.clip.model) != before
    assert fingerprint(run.load_task(0).model) == before


def test_on_the_way_over_several_tasks_only_changed_weights_are_read_again(
    whole_run: WholeRun, monkeypatch: pytest.MonkeyPatch
):
    """Each delta checks all weights before and after it; a large model takes seconds to read."""
    clip, read = tiny_clip(), list[int]()
    run = open_run(whole_run("spu")[0], model=clip)
    own = {tensor.data_ptr() for tensor in clip.model.state_dict().values()}
    digest_one = fingerprints._digest_one

    def counting(tensor: Tensor) -> str:
        read.extend({tensor.data_ptr()} & own)
        return digest_one(tensor)

    monkeypatch.setattr(fingerprints, "_digest_one", counting)
    for tasks in (3, 0):
        run.load_task(tasks)
        assert len(read) == len(own) + 3 * 4, "all once, and the four layers that each task changed"
        read.clear()


def test_another_model_is_refused(march_folder: Path, tmp_path: Path):
    other = tiny_folder(tmp_path / "other", seed=1)
    with pytest.raises(UserError, match=r"began with weights .*\(model=…\)"):
        open_run(march_folder, model=str(other))


def test_a_damaged_config_is_refused(march_folder: Path):
    config = march_folder / "config.yaml"
    text = config.read_text()
    config.write_text(text.replace("lr: 0.001", "lr: 0.002"))
    with pytest.raises(UserError, match=r"config\.yaml is damaged or was changed by hand"):
        open_run(march_folder)
    incomplete = {"weights": "0" * 64, "places": {}, "method": [], "settings": {}}
    checksummed.write_yaml(config, incomplete)
    with pytest.raises(
        UserError,
        match=r"another version .*\(method=\[\]: input should be a valid dictionary\); take",
    ):
        open_run(march_folder)
    config.write_text("{")
    with pytest.raises(UserError, match="is damaged"):
        open_run(march_folder)
