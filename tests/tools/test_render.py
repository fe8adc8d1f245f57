"""The archive in the package holds what `tools` draws.

Drawing needs numpy alone, neither a font nor Pillow. A sheet is rendered again, encoded and decoded
with the same settings, and compared with that of the archive. Versions of libwebp may round
differently, and so do matrix products from one BLAS kernel to the next: a little is allowed.
"""

import io
import json
import tarfile

import numpy as np
import pytest
from PIL import Image

from retouch.builtin.archive import ARCHIVE, read_index, read_sheets
from tools import render
from tools.pictures import effects
from tools.pictures.sets import SETS

TOLERANCE = 0.1  # mean absolute difference, in levels of 255


def difference(name: str, sheet: int) -> float:
    """Mean absolute difference between a sheet of the archive and the same one rendered now."""
    encoded = render.encode_sheet(SETS[name], sheet)
    rendered = np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB"), dtype=int)
    stored = read_sheets(name, sheet + 1)[sheet]
    return float(np.abs(rendered - stored.reshape(rendered.shape)).mean())


@pytest.mark.parametrize("name", SETS)
def test_a_sheet_rendered_again_is_that_of_the_archive(name: str):
    sheet = int(np.random.default_rng(len(name)).integers(SETS[name].sheets))
    changed = difference(name, sheet)
    assert changed < TOLERANCE, (
        f"sheet {sheet} of {name} is drawn differently now, by {changed:.2f} levels per value. If "
        "the drawing was changed on purpose, run `python -m tools.render` and measure the numbers "
        f"of the demo in README and docs again; if not, look for a change in numpy "
        f"({np.__version__} here)."
    )


def test_a_changed_drawing_is_noticed(monkeypatch: pytest.MonkeyPatch):
    noise = effects.noise
    monkeypatch.setattr(
        effects, "noise", lambda canvas, rng, amount: noise(canvas, rng, 1.05 * amount)
    )
    assert difference("signs-train", 3) > TOLERANCE


def test_the_index_is_what_would_be_written_now():
    with ARCHIVE.open("rb") as file, tarfile.open(fileobj=file) as archive:
        stored = json.load(archive.extractfile("index.json"))
    assert stored == json.loads(json.dumps(render.index()))


def test_every_sheet_is_in_the_archive():
    sets = read_index().sets
    assert {name: (s.sheets, s.rows) for name, s in SETS.items()} == {
        name: (s.sheets, s.rows) for name, s in sets.items()
    }
    assert all(read_sheets(name, s.sheets).any() for name, s in sets.items())


def test_the_archive_is_not_too_large():
    with ARCHIVE.open("rb") as file:
        assert file.seek(0, 2) <= 8e6
