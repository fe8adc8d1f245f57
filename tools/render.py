"""Render the pictures that come with the package into one archive.

    python -m tools.render

draws them all and writes `src/retouch/builtin/pictures.tar`, on all CPU cores. The same code
writes the same pixels: WebP is used without loss, and a picture that differs from that in the
archive only as processors round keeps the archive's. `retouch.builtin.archive` describes the
format, and reads it.
"""

import io
import json
import sys
import tarfile
from collections.abc import Sequence
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from retouch.builtin.archive import COLUMN, read_index, read_sheets
from retouch.builtin.noise import NoiseTable
from tools.pictures import signs, world
from tools.pictures.canvas import SIZE, Pixels
from tools.pictures.sets import SETS, draw_box, draw_pair
from tools.subtract_noise import subtract_noise

ARCHIVE = Path(__file__).resolve().parents[1] / "src" / "retouch" / "builtin" / "pictures.tar"


def index() -> dict[str, Any]:
    """Everything but the pixels, as `retouch.builtin.archive.Index` reads it."""
    pairs, boxes = SETS["pairs"].stored, SETS["boxes"].stored
    boxed = [draw_box(number)[1:] for number in range(boxes.sheets * boxes.rows)]
    return {
        "picture_size": SIZE,
        "sets": {name: s.stored.model_dump() for name, s in SETS.items()},
        "signs": [{"name": s.name, "description": s.description} for s in signs.CLASSES],
        "control": [control.name for control in world.CONTROL],
        "captions": [draw_pair(number)[1] for number in range(pairs.sheets * pairs.rows)],
        "boxes": [{"description": description, "box": box} for description, box in boxed],
    }


def encode_sheet(
    name: str, sheet: int, archived: Sequence[Pixels] | None = None
) -> tuple[list[bytes], NoiseTable]:
    """The images of a sheet, and the noise of its pictures; see `subtract_noise`."""
    rows = range(SETS[name].stored.rows)
    drawn = [
        subtract_noise(name, sheet, row, None if archived is None else archived[row])
        for row in rows
    ]
    pictures, noise = zip(*drawn, strict=True)
    columns = [pictures[first : first + COLUMN] for first in range(0, len(pictures), COLUMN)]
    return [encode_column(column) for column in columns], np.stack(noise)


def encode_column(pictures: Sequence[Pixels], method: int = 6) -> bytes:
    """Pictures as one lossless WebP, one below the other.

    Args:
        pictures: The pictures.
        method: The effort of the encoder, up to 6, which takes 8 times as long as 5 to save 3 %.
    """
    encoded = io.BytesIO()
    image = Image.fromarray(np.concatenate(pictures))
    image.save(encoded, "WEBP", lossless=True, quality=100, method=method)
    return encoded.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    """Add a member that has no date and no owner."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def archived_sheets(name: str) -> Sequence[Sequence[Pixels] | None]:
    """The pictures of a set in the archive so far; None for each sheet if it had another shape."""
    stored = SETS[name].stored
    if ARCHIVE.exists() and read_index().sets.get(name) == stored:
        return list(read_sheets(name, stored.sheets))
    return [None] * stored.sheets


def render(file: Path) -> None:
    """Draw all pictures and write the archive."""
    archived = {name: archived_sheets(name) for name in SETS}
    with tarfile.open(file, "w", format=tarfile.USTAR_FORMAT) as archive, Pool() as pool:
        _add(archive, "index.json", json.dumps(index(), indent=1).encode())
        for name, picture_set in SETS.items():
            jobs = [(name, *sheet) for sheet in enumerate(archived[name])]
            encoded, noise = zip(*pool.starmap(encode_sheet, jobs), strict=True)
            for sheet, images in enumerate(encoded):
                for image, content in zip(picture_set.stored.images(sheet), images, strict=True):
                    _add(archive, f"{name}/{image}", content)
            table = io.BytesIO()
            np.save(table, np.stack(noise))
            _add(archive, f"{name}/noise.npy", table.getvalue())


if __name__ == "__main__":
    render(Path(sys.argv[1]) if len(sys.argv) > 1 else ARCHIVE)
