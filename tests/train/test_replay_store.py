"""The images that a run stores: exactly those of the replay buffer, and refused where changed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from continued_runs import march
from tiny import images

import retouch
from retouch.clip import Preprocess
from retouch.data import Stream
from retouch.errors import UserError
from retouch.evaluate import Results
from retouch.files import checksummed
from retouch.train.run_folder.images import TEST_IMAGES_PER_CLASS, read_stored_images, write_images

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


def test_of_many_test_images_a_random_part_is_stored(tmp_path: Path):
    """And the same whenever the same run is taught."""
    train, test = images("train", 2, 4), images("test", 2, 60)
    stream = Stream.split(train, test, tasks=1)
    stored = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        results = Results(method="", summary="", model="", tasks=[], parameters=1)
        results.settings = {"seed": seed}
        write_images(tmp_path / name, stream, results, PREPROCESS)
        stored.append(read_stored_images(tmp_path / name).test)
    pixels = [each.read(np.arange(len(each)), PREPROCESS) for each in stored]
    assert np.bincount(stored[0].labels).tolist() == [TEST_IMAGES_PER_CLASS] * 2
    assert np.array_equal(pixels[0], pixels[1])
    assert not np.array_equal(pixels[0], pixels[2])
    first = test.read(np.arange(TEST_IMAGES_PER_CLASS), PREPROCESS)
    assert not np.array_equal(pixels[0][:TEST_IMAGES_PER_CLASS], first)


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
