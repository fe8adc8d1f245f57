"""Annotations in COCO's format, and what is wrong with some."""

from pathlib import Path

import pytest
from traced_models import write_coco

from retouch.analysis.annotations import read_annotations
from retouch.builtin.boxes import boxed_pictures
from retouch.errors import UserError


@pytest.mark.parametrize("official", [False, True])
def test_coco_in_both_layouts(tmp_path: Path, official: bool):
    file = write_coco(tmp_path, official)
    if official:  # as the official download has it
        file.with_name("instances_train2017.json").write_text("{}")
    for source in (tmp_path, file):
        objects = read_annotations(source)
        assert [scene.key for scene in objects.scenes] == ["7", "8", "9"]
        assert objects.scenes[0].boxes == {"red": ((5, 5, 20, 20),), "dark blue": ((1, 1, 2, 2),)}
        assert objects.scenes[2].boxes == {}
        assert objects.pictures.image(2).size == (40, 30)


VALID = {"id": 5, "image_id": 7, "category_id": 3, "bbox": [5, 5, 20, 20]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"annotations": [VALID | {"bbox": [30, 5, 20, 20]}]}, r"5 .*outside.* 0\.png of 40×30"),
        ({"annotations": [VALID | {"bbox": [-9, 5, 20, 20]}]}, "outside its image"),
        ({"annotations": [VALID | {"bbox": [5, 5, -3, 2]}]}, "outside its image"),
        ({"annotations": [VALID | {"bbox": [5, 5, float("nan"), 2]}]}, "NaN is not a number"),
        ({"annotations": [VALID | {"bbox": [5, 5]}]}, "not in COCO's format"),
        ({"annotations": [VALID | {"category_id": 99}]}, "class 99, which is not among the 2 cat"),
        ({"annotations": [VALID | {"image_id": 99}]}, "image 99, which the file does not list"),
        ({"annotations": [{"id": 5}]}, "not in COCO's format.*category_id"),
        ({"categories": None}, "not in COCO's format"),
        ({"images": []}, "image 7, which the file does not list"),
        ({"images": [], "annotations": []}, "lists no images"),
    ],
)  # fmt: skip
def test_coco_files_with_mistakes(tmp_path: Path, change: dict[str, object], message: str):
    write_coco(tmp_path, **change)
    with pytest.raises(UserError, match=message):
        read_annotations(tmp_path)


def test_coco_folders_with_mistakes(tmp_path: Path):
    with pytest.raises(UserError, match="no instances"):
        read_annotations(tmp_path)
    file = write_coco(tmp_path)
    file.with_name("instances_2.json").write_text("{}")
    with pytest.raises(UserError, match="several annotation files"):
        read_annotations(tmp_path)
    file.with_name("instances_2.json").unlink()
    (tmp_path / "images" / "0.png").unlink()
    with pytest.raises(UserError, match=r"0\.png is in none of"):
        read_annotations(tmp_path)
    file.write_text("[")
    with pytest.raises(UserError, match="is not JSON"):
        read_annotations(tmp_path)


def test_the_digest_changes_with_the_scenes():
    assert boxed_pictures(3).digest() == boxed_pictures(3).digest() != boxed_pictures(4).digest()
