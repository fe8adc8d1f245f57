"""The archive in the package holds what `tools` draws.

Drawing needs numpy alone, neither a font nor Pillow, and WebP stores it without loss. Still, pixels
depend on the processor, as `tools.subtract_noise.difference` says. That much is allowed here.
"""

import json
import tarfile
from functools import partial

import numpy as np
import pytest

from retouch.builtin.archive import ARCHIVE, read_sheets
from retouch.builtin.noise import add_noise
from tools import render
from tools.pictures import effects
from tools.pictures.sets import SETS
from tools.subtract_noise import ROUNDED, difference, subtract_noise

SAMPLE = 40  # pictures per set


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
def test_a_sheet_encoded_again_is_about_as_large(monkeypatch: pytest.MonkeyPatch):
    with ARCHIVE.open("rb") as file, tarfile.open(fileobj=file) as archive:
        stored = archive.getmember("signs-train/00-0.webp").size
    # With less effort than for the archive, which would take ten seconds.
    monkeypatch.setattr(render, "encode_column", partial(render.encode_column, method=4))
    (encoded,), _ = render.encode_sheet("signs-train", 0)
    assert stored <= len(encoded) < 1.08 * stored


def test_pixels_of_the_archive_are_kept_if_only_rounding_differs():
    drawn = SETS["boxes"].draw(0, 0)
    for changed, kept in ((ROUNDED, True), (ROUNDED + 1, False)):
        archived = drawn.copy()
        archived.reshape(-1)[100 : 100 + changed] ^= 1
        plain, entry = subtract_noise("boxes", 0, 0, archived)
        picture = add_noise(plain, SETS["boxes"].stored.picture_seed(0, 0), entry)
        assert np.array_equal(picture, archived if kept else drawn)


def test_archived_sheets():
    sheets = render.archived_sheets("boxes")
    assert np.array_equal(sheets, read_sheets("boxes", SETS["boxes"].stored.sheets))


@pytest.mark.parametrize("name", SETS)
def test_noise_is_subtracted_and_added_again(name: str):
    """Pictures without noise have less detail than with it, and none is lost."""
    rough = {False: 0, True: 0}
    for row in range(12):
        plain, entry = subtract_noise(name, 0, row)
        picture = add_noise(plain, SETS[name].stored.picture_seed(0, row), entry)
        assert np.array_equal(picture, SETS[name].draw(0, row))
        for noisy, pixels in ((False, plain), (True, picture)):
            rough[noisy] += np.abs(np.diff(pixels.astype(int), axis=1)).sum()
    assert rough[False] < 0.8 * rough[True]


def test_the_archive_is_not_too_large():
    with ARCHIVE.open("rb") as file:
        assert file.seek(0, 2) < 12e6
