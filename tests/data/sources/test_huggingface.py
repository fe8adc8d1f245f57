"""Data sets of the `datasets` library."""

from pathlib import Path

import layouts
import pytest
from source_cases import notes_of

from retouch.data import read_data
from retouch.errors import UserError


@pytest.mark.slow
def test_a_data_set_without_images_is_refused(tmp_path: Path):
    import datasets

    datasets.Dataset.from_dict({"a": [1]}).save_to_disk(tmp_path / "d")
    with pytest.raises(UserError, match="no column of images, only a; cast one"):
        read_data(tmp_path / "d")


def test_an_unreachable_hub(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between the attempts
    with pytest.raises(UserError, match="hf:nobody/nothing cannot be loaded"):
        read_data("hf:nobody/nothing")


def test_splits_of_a_saved_data_set(tmp_path: Path):
    import datasets

    layouts.write_hf(tmp_path)
    original = datasets.load_from_disk(tmp_path / "hf")
    three_splits = datasets.DatasetDict({**original, "validation": original["test"]})
    three_splits.save_to_disk(tmp_path / "three")
    notes = notes_of(read_data(tmp_path / "three"))
    assert "validation is not used, because there is test" in notes[0]
    del three_splits["test"]
    three_splits.save_to_disk(tmp_path / "two")
    splits = read_data(tmp_path / "two")
    assert len(splits.test) == len(original["test"])
    assert "validation for testing" in notes_of(splits)[0]
    unlabeled = original["test"].map(lambda row: {"label": -1})
    datasets.DatasetDict({**three_splits, "test": unlabeled}).save_to_disk(tmp_path / "unlabeled")
    splits = read_data(tmp_path / "unlabeled")
    assert len(splits.test) == len(original["test"])
    assert "test is not used, because it has no labels" in notes_of(splits)[1]
