"""Render the pictures that come with the package into one archive.

    python -m tools.render

draws them all and writes `src/retouch/builtin/pictures.tar`, in about two minutes. The same code
writes the same bytes, up to the version of libwebp; pixels do not depend on that, since WebP is
used without loss. `retouch.builtin.archive` describes the format, and reads it.
"""

import io
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tools.pictures import signs, world
from tools.pictures.canvas import SIZE
from tools.pictures.sets import SETS, PictureSet, draw_box, draw_pair

ARCHIVE = Path(__file__).resolve().parents[1] / "src" / "retouch" / "builtin" / "pictures.tar"


def index() -> dict[str, Any]:
    """Everything but the pixels, as `retouch.builtin.archive.Index` reads it."""
    pairs, boxes = SETS["pairs"], SETS["boxes"]
    boxed = [draw_box(number)[1:] for number in range(boxes.sheets * boxes.rows)]
    return {
        "picture_size": SIZE,
        "sets": {name: {"sheets": s.sheets, "rows": s.rows} for name, s in SETS.items()},
        "signs": [{"name": s.name, "description": s.description} for s in signs.CLASSES],
        "control": [control.name for control in world.CONTROL],
        "captions": [draw_pair(number)[1] for number in range(pairs.sheets * pairs.rows)],
        "boxes": [{"description": description, "box": box} for description, box in boxed],
    }


def encode_sheet(picture_set: PictureSet, sheet: int) -> bytes:
    """A sheet as lossless WebP, one picture below the other."""
    pictures = [picture_set.draw(sheet, row) for row in range(picture_set.rows)]
    encoded = io.BytesIO()
    image = Image.fromarray(np.concatenate(pictures))
    # Quality is the effort of the encoder here: 100 takes 20 times as long to save 0.4 %.
    image.save(encoded, "WEBP", lossless=True, quality=90, method=6)
    return encoded.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    """Add a member that has no date and no owner."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def render(file: Path) -> None:
    """Draw all pictures and write the archive."""
    with tarfile.open(file, "w", format=tarfile.USTAR_FORMAT) as archive:
        _add(archive, "index.json", json.dumps(index(), indent=1).encode())
        for name, picture_set in SETS.items():
            for sheet in range(picture_set.sheets):
                _add(archive, f"{name}/{sheet:02}.webp", encode_sheet(picture_set, sheet))


if __name__ == "__main__":
    render(Path(sys.argv[1]) if len(sys.argv) > 1 else ARCHIVE)
