"""The archive holds what its index says, and no more can be requested than it holds."""

import io
import tarfile

import numpy as np
import pytest
from PIL import Image

from retouch.builtin.archive import ARCHIVE, check_request, read_index, read_sheets
from retouch.errors import UserError


def members() -> dict[str, bytes]:
    with ARCHIVE.open("rb") as file, tarfile.open(fileobj=file) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}


def test_the_members_are_those_of_the_index():
    sheets = {
        f"{name}/{number:02}.webp"
        for name, stored in read_index().sets.items()
        for number in range(stored.sheets)
    }
    assert members().keys() == {"index.json", *sheets}


def test_every_picture_has_its_class_caption_or_box():
    index = read_index()
    sizes = {name: stored.sheets * stored.rows for name, stored in index.sets.items()}
    assert index.sets["signs-train"].rows == index.sets["signs-test"].rows == len(index.signs)
    assert index.sets["control"].rows == len(index.control)
    assert (sizes["pairs"], sizes["boxes"]) == (len(index.captions), len(index.boxes))


def test_sheets_are_read_in_order():
    first, both = read_sheets("boxes", 1), read_sheets("boxes", 2)
    assert both.shape == (2, read_index().sets["boxes"].rows, 64, 64, 3)
    assert both.dtype == np.uint8
    assert np.array_equal(first[0], both[0])
    with Image.open(io.BytesIO(members()["boxes/01.webp"])) as sheet:
        assert np.array_equal(np.asarray(sheet)[64:128], both[1, 1])


@pytest.mark.parametrize("requested", [-1, 0, 9])
def test_a_request_that_cannot_be_met(requested: int):
    check_request(8, 8, "pictures per class")
    with pytest.raises(UserError, match=f"^{requested} pictures per class requested.*with 8; ask"):
        check_request(requested, 8, "pictures per class")


def test_a_pillow_without_webp(monkeypatch: pytest.MonkeyPatch):
    read_index()
    monkeypatch.setattr(Image, "ID", [name for name in Image.ID if name != "WEBP"])
    monkeypatch.setattr(Image, "init", lambda: None)
    with pytest.raises(UserError, match="install Pillow from PyPI"):
        read_sheets("boxes", 1)
