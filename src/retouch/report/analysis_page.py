"""Reading the analyses of a run for its page."""

import base64
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from retouch import checksummed
from retouch.analysis.result_files import AnalysisFacts, analysis_folder
from retouch.errors import UserError

ON_THE_PAGE = ("trace", "cam")
"""Analyses that are shown if they were made, in this order; the overlap is computed each time."""
MAX_BYTES = 8 * 1024 * 1024
"""A figure is smaller than this: a larger file is not one of ours."""
_SIGNATURES = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg"}


class AnalysisResult(NamedTuple):
    """An analysis of a run, ready for the page."""

    name: str
    title: str
    caption: str
    picture: str
    """A data URI; empty if it cannot be shown."""
    problem: str = ""
    """Why it cannot be shown."""


def read_analyses(run: Path) -> list[AnalysisResult]:
    """The analyses in a run's folder. A damaged one is reported; the rest of the page is shown."""
    return [
        _read(run, name)
        for name in ON_THE_PAGE
        if (analysis_folder(run, name) / f"{name}.json").exists()
    ]


def _read(run: Path, name: str) -> AnalysisResult:
    facts_file = analysis_folder(run, name) / f"{name}.json"
    try:
        _check_file(run, facts_file)
        facts = checksummed.read(facts_file, AnalysisFacts, "make it again")
        picture = _data_uri(run, facts_file.with_suffix(".png"), facts.picture)
        return AnalysisResult(name, facts.title, facts.caption, picture)
    except UserError as error:
        return AnalysisResult(name, name, "", "", str(error))


def _check_file(run: Path, file: Path) -> None:
    """Refuse a file that is outside the run's folder, missing, or too large for the page."""
    if not file.resolve().is_relative_to(run.resolve()):
        raise UserError(f"{file} leads out of the run; delete it")
    if not file.is_file():
        raise UserError(f"{file} is missing; make it again")
    if file.stat().st_size >= MAX_BYTES:
        raise UserError(f"{file} is too large for the page: {MAX_BYTES >> 20} MB or more")


def _data_uri(run: Path, file: Path, digest: str) -> str:
    _check_file(run, file)
    data = file.read_bytes()
    formats = [name for signature, name in _SIGNATURES.items() if data.startswith(signature)]
    if not formats:
        raise UserError(f"{file} is not a picture; make it again")
    if sha256(data).hexdigest() != digest:
        raise UserError(f"{file} is damaged or was changed; make it again")
    return f"data:image/{formats[0]};base64,{base64.b64encode(data).decode()}"
