"""The images that a run stores: exactly those of the replay buffer, and refused where changed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from continued_runs import march

import retouch
from retouch import checksummed
from retouch.clip import Preprocess
from retouch.errors import UserError
from retouch.train.replay_store import read_stored_images

PREPROCESS = Preprocess(size=(16, 16))


def test_stored_images_are_exactly_those_of_the_buffer(model: Path, tmp_path: Path):
    results, _, stream = march(model, tmp_path / "march")
    stored = read_stored_images(tmp_path / "march")
    assert results.replay == retouch.Results.read(tmp_path / "march").replay
    positions = np.array(results.replay.groups["0"])
    everything = np.arange(len(positions))
    expected = stream.train.read(positions, PREPROCESS)
    assert np.array_equal(stored.replay.read(everything, PREPROCESS), expected)
    wider = Preprocess(size=(16, 16), shortest=20)  # would crop what is cropped already
    assert np.array_equal(stored.replay.read(everything, wider), expected)
    names = [stream.train.classes[label] for label in stream.train.labels[positions]]
    assert [stored.replay.classes[label] for label in stored.replay.labels] == names
    assert len(stored.test) == len(stream.test)
    assert stored.groups == {"0": list(range(len(positions)))}


def _edit(folder: Path, change: Any) -> None:
    """Change the index, and correct its checksum."""
    index = json.loads((folder / "index.json").read_bytes())
    change(index)
    checksummed.write_json(folder / "index.json", index)


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda f: (f / "replay-000001.png").write_bytes(b"x"), "replay-000001.png was changed"),
        (lambda f: (f / "test-000000.png").unlink(), "test-000000.png cannot be read"),
        (lambda f: (f / "index.json").write_text("{"), "index.json is damaged"),
        (lambda f: checksummed.write_json(f / "index.json", {"format": "x"}), "by another version"),
        (lambda f: _edit(f, lambda i: i["groups"]["0"].append(99)), "groups do not hold each"),
        (lambda f: _edit(f, lambda i: i["test"][0].update(file="../x.png")), "replay.test.-"),
        (lambda f: _edit(f, lambda i: i["replay"][0].pop("task")), "replay.0.task: Field required"),
        (lambda f: (f / "index.json").unlink(), "holds no images to continue from"),
    ],
)
def test_changed_images_are_refused(damage: Any, complaint: str, march_folder: Path):
    damage(march_folder / "images")
    with pytest.raises(UserError, match=complaint):
        read_stored_images(march_folder)
