"""The archive in the package holds what `tools` draws.

Drawing needs numpy alone, neither a font nor Pillow, and WebP stores it without loss. Still, pixels
depend on the processor: matrix products round differently from one BLAS kernel to the next, which
changes about one value in a million by one level. That much is allowed here, and no more.
"""

import json
import tarfile

import numpy as np
import pytest

from retouch.builtin.archive import ARCHIVE, read_sheets
from retouch.builtin.noise import add_noise
from tools import render
from tools.pictures import effects
from tools.pictures.canvas import Pixels
from tools.pictures.sets import SETS

SAMPLE = 40  # pictures per set
ROUNDED = 4  # values per picture, of 12,288


def difference(drawn: Pixels, stored: Pixels) -> str:
    """How two pictures differ beyond rounding, or ""."""
    distance = np.abs(drawn.astype(int) - stored)
    if distance.max() <= 1 and np.count_nonzero(distance) <= ROUNDED:
        return ""
    return f"{np.count_nonzero(distance)} values, by up to {distance.max()}"


def changes(name: str, seed: int = 0) -> dict[tuple[int, int], str]:
    """Draw a random sample of a set; return how its pictures (sheet, row) differ, if they do."""
    picture_set, sheets, rows = SETS[name], SETS[name].stored.sheets, SETS[name].stored.rows
    stored = read_sheets(name, sheets)
    rng = np.random.default_rng(seed)
    positions = rng.permutation(sheets * rows)[:SAMPLE]
    places = [divmod(int(position), rows) for position in positions]
    compared = {place: difference(picture_set.draw(*place), stored[place]) for place in places}
    return {place: text for place, text in compared.items() if text}


@pytest.mark.parametrize("name", SETS)
def test_pictures_drawn_again_are_those_of_the_archive(name: str):
    changed = changes(name)
    assert not changed, (
        f"{len(changed)} of {SAMPLE} pictures of {name} (sheet, row) are drawn differently now: "
        f"{changed}. If the drawing was changed on purpose, run `python -m tools.render` and "
        f"measure the numbers of the demo in README and docs again; if not, look for a change in "
        f"numpy ({np.__version__} here)."
    )


@pytest.mark.parametrize("name", SETS)
def test_a_changed_drawing_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch):
    noise = effects.noise
    monkeypatch.setattr(
        effects, "noise", lambda canvas, rng, amount: noise(canvas, rng, 1.05 * amount)
    )
    assert len(changes(name)) > SAMPLE // 2


@pytest.mark.slow
def test_the_index_is_what_would_be_written_now():
    with ARCHIVE.open("rb") as file, tarfile.open(fileobj=file) as archive:
        stored = json.load(archive.extractfile("index.json"))
    assert stored == json.loads(json.dumps(render.index()))


@pytest.mark.slow
def test_a_sheet_encoded_again_is_as_large():
    with ARCHIVE.open("rb") as file, tarfile.open(fileobj=file) as archive:
        stored = archive.getmember("signs-train/00.webp").size
    encoded, _ = render.encode_sheet("signs-train", 0)
    assert len(encoded) == pytest.approx(stored, rel=0.05)


@pytest.mark.parametrize("name", SETS)
def test_noise_is_subtracted_and_added_again(name: str):
    """Pictures without noise have less detail than with it, and none is lost."""
    rough = {False: 0, True: 0}
    for row in range(12):
        plain, entry = render.subtract_noise(name, 0, row)
        picture = add_noise(plain, SETS[name].stored.picture_seed(0, row), entry)
        assert np.array_equal(picture, SETS[name].draw(0, row))
        for noisy, pixels in ((False, plain), (True, picture)):
            rough[noisy] += np.abs(np.diff(pixels.astype(int), axis=1)).sum()
    assert rough[False] < 0.8 * rough[True]


def test_the_archive_is_not_too_large():
    with ARCHIVE.open("rb") as file:
        assert file.seek(0, 2) < 13e6
