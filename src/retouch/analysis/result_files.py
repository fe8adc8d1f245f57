"""The files of an analysis: figure, data and caption, in a folder of their own.

`RUN/analysis/NAME` holds `NAME.png`, `NAME.svg`, `NAME.csv` and `NAME.json`, with the title, the
caption and the main numbers. The run's page shows what it finds there.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from pydantic import BaseModel, ConfigDict, ValidationError

from retouch.files import checksummed
from retouch.files.output_paths import foreign_file
from retouch.files.write import write_atomically
from retouch.plotting.rendering import to_png, to_svg

FOLDER = "analysis"
SUFFIXES = ("png", "svg", "csv", "json")


class AnalysisFacts(BaseModel):
    """What the page reads of `NAME.json`; the other keys are for other readers."""

    model_config = ConfigDict(extra="allow")

    title: str
    caption: str = ""
    picture: str
    """The SHA-256 of `NAME.png`."""


def analysis_folder(run: str | Path, name: str) -> Path:
    """Where the files of an analysis of a run belong."""
    return Path(run) / FOLDER / name


def check_analysis_folder(folder: str | Path, *names: str) -> None:
    """Refuse a folder with files that would be replaced, though no analysis wrote them.

    What an analysis wrote has a `NAME.json` beside it that says so.
    """
    for name in names:
        files = [Path(folder) / f"{name}.{suffix}" for suffix in SUFFIXES]
        existing = [file for file in files if file.exists()]
        if existing and not _is_analysis(files[-1]):
            raise foreign_file(existing[-1])


def _is_analysis(file: Path) -> bool:
    try:
        AnalysisFacts.model_validate_json(file.read_bytes())
    except (OSError, ValidationError):
        return False
    return True


def write_analysis(
    folder: str | Path,
    name: str,
    figure: Figure,
    rows: Sequence[Mapping[str, Any]],
    facts: Mapping[str, Any],
) -> list[Path]:
    """Write the figure as PNG and SVG, its data (`rows`) as CSV and `facts` as JSON."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    table = io.StringIO()
    writer = csv.DictWriter(table, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    content: dict[str, bytes | str] = {
        "png": (png := to_png(figure)),
        "svg": to_svg(figure, name),
        "csv": table.getvalue(),
    }
    files = [folder / f"{name}.{suffix}" for suffix in SUFFIXES]
    # First what says that the others are an analysis, in case this is killed.
    checksummed.write_json(files[-1], {**facts, "picture": sha256(png).hexdigest()})
    for file, data in zip(files, content.values(), strict=False):
        write_atomically(file, data)
    return files
