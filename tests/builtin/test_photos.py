"""The folders of example images."""

import csv
from pathlib import Path

import retouch
from retouch.builtin.photos import write_photos


def test_the_folders_and_their_tables(tmp_path: Path):
    write_photos(tmp_path, per_class=3)
    assert {path.name for path in tmp_path.iterdir()} == {
        *("photos", "photos.csv", "more", "more.csv", "known")
    }
    for name in ("photos", "more"):
        images = retouch.read_data(str(tmp_path / name)).train
        assert (len(images), len(images.classes)) == (12, 4)
        with (tmp_path / f"{name}.csv").open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert {row["folder"] for row in rows} == set(images.classes)
        assert len({row["name"] for row in rows}) == 4
    assert len(retouch.read_data(str(tmp_path / "known")).train.classes) == 154
