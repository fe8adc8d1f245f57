"""The archive holds what its index says, and no more can be requested than it holds."""

import hashlib
import io
import tarfile

import numpy as np
import pytest
from PIL import Image

from retouch.builtin.archive import ARCHIVE, check_request, read_index, read_sheets
from retouch.builtin.noise import ONE, STEEP, add_noise, rounded_noise
from retouch.errors import UserError

DIGESTS = {
    "signs-train": "dee5de10533f28560dda1f343592392de91fd4ac1f60946819e574fa7a6ba7eb",
    "signs-test": "71ac21319e9333e708baccc0e04c4b89c0ff3519bce40717d054e36fa8fa6432",
    "control": "9da1e630ccdfe9848ac35058d0dec737d75f446259334a82e45bc19dbb290b48",
    "pairs": "624582e3709698de2323089d42bdb83c29f52e45b27da60c88b1eec2ff29e491",
    "boxes": "49fc3d2ad47cc409f897a92c538854fc44d7347115ca9147003153cc5d4be9a9",
}


def members() -> dict[str, bytes]:
    with ARCHIVE.open("rb") as file, tarfile.open(fileobj=file) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}


def test_the_members_are_those_of_the_index():
    tables = {f"{name}/noise.npy" for name in read_index().sets}
    sheets = {
        f"{name}/{image}"
        for name, stored in read_index().sets.items()
        for number in range(stored.sheets)
        for image in stored.images(number)
    }
    assert members().keys() == {"index.json", *tables, *sheets}
    assert {"signs-train/39-0.webp", "control/07-3.webp"} < sheets


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
    with Image.open(io.BytesIO(members()["boxes/01-0.webp"])) as sheet:
        picture = np.asarray(sheet)[64:128]
    noise = np.load(io.BytesIO(members()["boxes/noise.npy"]))
    seed = read_index().sets["boxes"].picture_seed(1, 1)
    assert np.array_equal(add_noise(picture, seed, noise[1, 1]), both[1, 1])
    assert not np.array_equal(picture, both[1, 1])


@pytest.mark.parametrize(("name", "digest"), DIGESTS.items())
def test_pixels_are_those_that_the_numbers_in_the_documents_were_measured_on(
    name: str, digest: str
):
    pixels = read_sheets(name, read_index().sets[name].sheets)
    assert hashlib.sha256(pixels.tobytes()).hexdigest() == digest


def test_noise_is_that_of_numpys_generator():
    """The same uniform numbers as `Generator.random` draws, whether or not a half is left over."""
    for integers in (0, 1):
        rng = np.random.default_rng([7, 8, 9])
        rng.random(5)
        rng.integers(10, size=integers, dtype=np.uint32)
        uniform = rng.random((3, 64, 64), dtype=np.float32) - 0.5
        entry = np.array([5 + integers, integers, 40 * ONE, 0, *[ONE // 2, 0, 0] * 3], np.int16)
        difference = np.abs(rounded_noise([7, 8, 9], entry, 64) - 40 * uniform).ravel()
        assert difference[integers:].max() < 0.51


def test_planes_rise_from_the_middle_of_the_picture():
    planes = (ONE, STEEP, 0), (0, 0, -STEEP // 2), (0, 0, 0)
    entry = np.array([0, 0, 0, 0, *np.ravel(planes)], np.int16)
    red, green, blue = rounded_noise([1], entry, 64)
    place = np.arange(64) - 32
    assert np.array_equal(red, np.broadcast_to(1 + place, (64, 64)))
    assert np.array_equal(green, np.broadcast_to(np.floor(-place / 2)[:, None], (64, 64)))
    assert not blue.any()


def test_values_beyond_black_and_white():
    picture = np.full((64, 64, 3), 250, np.uint8)
    planes = (10 * ONE, 0, 0), (0, 0, 0), (-128 * ONE + 1, 0, 0)
    clipped, wrapped = (
        add_noise(picture, [1], np.array([0, 0, 0, wraps, *np.ravel(planes)], np.int16))
        for wraps in (0, 1)
    )
    assert clipped[0, 0].tolist() == [255, 250, 122]
    assert wrapped[0, 0].tolist() == [4, 250, 122]


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
