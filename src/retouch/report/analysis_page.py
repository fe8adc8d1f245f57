"""Looking inside: a folder an analysis, with its figure and its numbers, and how the page reads it.

`RUN/analysis/NAME` holds `NAME.png`, `NAME.svg`, `NAME.csv` and `NAME.json`: a title, a caption and
the numbers in short.
"""

import base64
import csv
import io
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from pydantic import BaseModel, ValidationError

from retouch import checksummed
from retouch.errors import UserError
from retouch.files import write_atomically
from retouch.report.theme import png, svg

FOLDER = "analysis"
ON_THE_PAGE = ("trace", "cam")
"""What others made, in the order of the page; overlap is drawn anew from the run itself."""
LARGEST = 8 * 1024 * 1024
"""No figure has so many bytes: a file that has is none."""
_KINDS = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg"}


class AnalysisFacts(BaseModel):
    """What `NAME.json` says; whatever else is in it is for other readers."""

    title: str
    caption: str = ""
    picture: str
    """The SHA-256 of `NAME.png`."""


class AnalysisResult(NamedTuple):
    """An analysis that was made of a run, ready for the page."""

    name: str
    title: str
    caption: str
    picture: str
    """A data URI; empty where it cannot be shown."""
    trouble: str = ""
    """Why it cannot."""


def analysis_folder(run: str | Path, name: str) -> Path:
    """Where an analysis of a run belongs."""
    return Path(run) / FOLDER / name


def write_analysis(
    folder: str | Path,
    name: str,
    figure: Figure,
    table: Sequence[Mapping[str, Any]],
    told: Mapping[str, Any],
) -> list[Path]:
    """Write the figure as PNG and SVG, its data as CSV, and what is told of it as JSON."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rows = io.StringIO()
    writer = csv.DictWriter(rows, list(table[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    content: dict[str, bytes | str] = {
        "png": (picture := png(figure)),
        "svg": svg(figure, name),
        "csv": rows.getvalue(),
    }
    files = [folder / f"{name}.{ending}" for ending in (*content, "json")]
    for file, data in zip(files, content.values(), strict=False):
        write_atomically(file, data)
    checksummed.write_json(files[-1], {**told, "picture": sha256(picture).hexdigest()})
    return files


def read_analyses(run: Path) -> list[AnalysisResult]:
    """What was made of a run. What is damaged is named: the rest of the page can be read."""
    return [
        _read(run, name) for name in ON_THE_PAGE if (run / FOLDER / name / f"{name}.json").exists()
    ]


def _read(run: Path, name: str) -> AnalysisResult:
    folder = run / FOLDER / name
    try:
        _bytes(run, folder / f"{name}.json")  # of this run, and not too large
        told = AnalysisFacts.model_validate(
            checksummed.read_json(folder / f"{name}.json", "make it again")
        )
        picture = _inline(run, folder / f"{name}.png", told.picture)
        return AnalysisResult(name, told.title, told.caption, picture)
    except ValidationError:
        return AnalysisResult(name, name, "", "", f"{folder / name}.json is damaged; make it again")
    except UserError as why:
        return AnalysisResult(name, name, "", "", str(why))


def _bytes(run: Path, file: Path) -> bytes:
    """Of a file that lies in the run's own folder, and is not too large for the page."""
    if not file.resolve().is_relative_to(run.resolve()):
        raise UserError(f"{file} leads out of the run; delete it")
    if not file.is_file():
        raise UserError(f"{file} is missing; make it again")
    if file.stat().st_size >= LARGEST:
        raise UserError(f"{file} is too large for the page: {LARGEST >> 20} MB or more")
    return file.read_bytes()


def _inline(run: Path, file: Path, wanted: str) -> str:
    data = _bytes(run, file)
    kinds = [kind for start, kind in _KINDS.items() if data.startswith(start)]
    if not kinds:
        raise UserError(f"{file} is no picture; make it again")
    if sha256(data).hexdigest() != wanted:
        raise UserError(f"{file} is damaged or was changed; make it again")
    return f"data:image/{kinds[0]};base64,{base64.b64encode(data).decode()}"
