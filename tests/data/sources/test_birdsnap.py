"""Birdsnap."""

from pathlib import Path

import layouts

from retouch.data import read_data


def test_missing_images_are_counted(tmp_path: Path):
    missing = layouts.write_birdsnap(tmp_path)["missing"]
    images = read_data("birdsnap", tmp_path).evaluation_images()
    assert images.notes[0].startswith(f"Birdsnap: {sum(missing.values())} of ")
    assert images.notes[1] == "Birdsnap: 4 of 500 classes found"
