"""FGVC-Aircraft."""

from pathlib import Path

import layouts
from layouts import locations
from source_cases import splits_of

from retouch.data import read_data


def test_labels_match_the_lists(tmp_path: Path):
    layouts.write_aircraft(tmp_path)
    lists = (tmp_path / "fgvc-aircraft-2013b" / "data").glob("images_variant_t*.txt")
    lines = {line for file in lists for line in file.read_text().splitlines()}
    for images in splits_of(read_data("aircraft", tmp_path)).values():
        for label, location in zip(images.labels, locations(images), strict=True):
            assert f"{Path(location).stem} {images.classes[label]}" in lines
