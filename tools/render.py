"""Render the pictures that come with the package into one archive.

    python -m tools.render

draws them all and writes `src/retouch/builtin/pictures.tar`, on all CPU cores. The same code
writes the same bytes, up to the version of libwebp; pixels do not depend on that, since WebP is
used without loss. `retouch.builtin.archive` describes the format, and reads it.
"""

import io
import json
import sys
import tarfile
from itertools import product
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from retouch.builtin.noise import ONE, NoiseTable, add_noise, rounded_noise
from tools.pictures import signs, world
from tools.pictures.canvas import SIZE, Pixels
from tools.pictures.effects import NoiseRecorder
from tools.pictures.sets import SETS, draw_box, draw_pair

ARCHIVE = Path(__file__).resolve().parents[1] / "src" / "retouch" / "builtin" / "pictures.tar"
Grid = NDArray[np.int64]
OFFSETS = range(0, ONE, ONE // 8)
"""The best is taken: flat areas compress best if their color falls on a whole pixel value."""


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


def subtract_noise(name: str, sheet: int, row: int) -> tuple[Pixels, NoiseTable]:
    """Draw a picture; return it without its noise, and how to draw the noise again."""
    seed = SETS[name].stored.picture_seed(sheet, row)
    rng = NoiseRecorder(np.random.PCG64(seed))
    picture = SETS[name].paint(row, rng)
    pixels = picture.transpose(2, 0, 1).astype(int)
    canvas = np.floor(rng.canvas * 255 + 0.5).astype(int)
    drawn = _draws(seed, rng), rng.state["has_uint32"], round(rng.width * 255 * ONE)
    plain, offsets, least = pixels.copy(), np.zeros(3, int), np.full(3, np.inf)
    for offset in OFFSETS:
        noise = rounded_noise(seed, np.array([*drawn, 0, *[offset] * 3], np.int16), SIZE)
        for color in range(3):
            trial, shift = _subtract(pixels[color], noise[color], canvas[color])
            bits = _estimated_bits(trial)
            if bits < least[color]:
                plain[color], least[color] = trial, bits
                offsets[color] = offset - shift * ONE
    wraps = plain.min() < 0 or plain.max() > 255  # too much contrast for a byte
    if wraps:
        offsets[:] = ONE // 2
    entry = np.array([*drawn, wraps, *offsets], np.int16)
    if wraps:
        plain = pixels - rounded_noise(seed, entry, SIZE)
    stored = plain.astype(np.uint8).transpose(1, 2, 0)
    assert np.array_equal(add_noise(stored, seed, entry), picture)
    return stored, entry


def _draws(seed: list[int], rng: NoiseRecorder) -> int:
    """How many 64-bit numbers were drawn before the noise."""
    generator, draws = np.random.PCG64(seed), 0
    while generator.state["state"] != rng.state["state"]:
        generator.advance(1)
        draws += 1
    return draws


def _subtract(picture: Grid, noise: Grid, canvas: Grid) -> tuple[Grid, int]:
    """One color of a picture without its noise, and by how much it was shifted to fit a byte."""
    plain = picture - noise
    black, white = picture == 0, picture == 255
    lowest, highest = plain[~white].min(initial=255), plain[~black].max(initial=0)
    shift = -lowest if lowest < 0 else min(0, 255 - highest)
    plain += shift
    # Black and white may come from any value beyond: take the canvas, which has no noise.
    smooth = (canvas + shift).clip(0, 255)
    plain = np.where(black, np.minimum(plain, smooth), plain)
    return np.where(white, np.maximum(plain, smooth), plain), int(shift)


def _estimated_bits(plain: Grid) -> float:
    """How much the values differ from what their neighbors predict."""
    left, above, corner = plain[1:, :-1], plain[:-1, 1:], plain[:-1, :-1]
    low, high = np.minimum(left, above), np.maximum(left, above)
    residual = plain[1:, 1:] - (left + above - corner).clip(low, high)
    return float(np.log2(1 + np.abs(residual)).sum())


def encode_sheet(name: str, sheet: int) -> tuple[bytes, NoiseTable]:
    """A sheet as lossless WebP, one picture below the other, and the noise of its pictures."""
    drawn = [subtract_noise(name, sheet, row) for row in range(SETS[name].stored.rows)]
    pictures, noise = zip(*drawn, strict=True)
    encoded = io.BytesIO()
    image = Image.fromarray(np.concatenate(pictures))
    # Both are the effort of the encoder here: method 6 takes 8 times as long to save 3 %.
    image.save(encoded, "WEBP", lossless=True, quality=100, method=5)
    return encoded.getvalue(), np.stack(noise)


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    """Add a member that has no date and no owner."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def render(file: Path) -> None:
    """Draw all pictures and write the archive."""
    with tarfile.open(file, "w", format=tarfile.USTAR_FORMAT) as archive, Pool() as pool:
        _add(archive, "index.json", json.dumps(index(), indent=1).encode())
        for name, picture_set in SETS.items():
            sheets = range(picture_set.stored.sheets)
            encoded, noise = zip(*pool.starmap(encode_sheet, product([name], sheets)), strict=True)
            for sheet in sheets:
                _add(archive, f"{name}/{sheet:02}.webp", encoded[sheet])
            table = io.BytesIO()
            np.save(table, np.stack(noise))
            _add(archive, f"{name}/noise.npy", table.getvalue())


if __name__ == "__main__":
    render(Path(sys.argv[1]) if len(sys.argv) > 1 else ARCHIVE)
