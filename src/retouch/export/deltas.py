"""Write a run's deltas into a folder of their own, to share them without the run."""

from dataclasses import replace
from pathlib import Path

from retouch.errors import UserError
from retouch.export.export_model import ExportModel
from retouch.export.formats import WriteReport
from retouch.sparse import Delta, fingerprint

_LIMIT = "They fit exactly the weights that the run began with; any others are refused."


def write_deltas(model: ExportModel, folder: Path) -> WriteReport:
    """One file for each task, which names no path of this machine; read again, they are applied."""
    if not model.deltas:
        raise UserError(
            "there is nothing to write: deltas are what a run changed. Give a run that has learned "
            "a task"
        )
    written = []
    for file in model.deltas:
        delta = Delta.load(file)
        base = {"model": model.hub or model.base} if "model" in delta.metadata else {}
        replace(delta, metadata={**delta.metadata, **base}).save(folder / file.name)
        written.append(Delta.load(folder / file.name))
    after = fingerprint(model.clip.model)
    for delta in reversed(written):  # any difference is refused
        delta.undo(model.clip.model)
    for delta in written:
        delta.apply(model.clip.model)
    assert fingerprint(model.clip.model) == after
    return WriteReport(0.0, 0.0, same=True, limits=[_LIMIT])
