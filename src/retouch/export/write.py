"""Write a model or an adapter with its card, verify it, and only then move it to its folder."""

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from retouch.clip import Clip
from retouch.clip.class_vectors import CLASS_VECTORS_FILE, save_class_vectors
from retouch.clip.finite import check_weights
from retouch.clip.prompts.visual import prompts_of
from retouch.errors import UserError
from retouch.evaluate.choices import PromptedClass
from retouch.export.adapter import write_adapter
from retouch.export.card import card
from retouch.export.export_model import ExportModel
from retouch.export.formats import FORMATS, Format, WriteReport
from retouch.export.onnx import write_onnx
from retouch.export.pytorch import write_hf, write_open_clip
from retouch.files.output_paths import refuse_existing
from retouch.files.write import atomic_folder
from retouch.sparse import Delta, fingerprint
from retouch.torchvision_compat import patch_torchvision

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


_LOGGERS = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir", "onnxruntime")


@contextlib.contextmanager
def silence_libraries() -> Iterator[None]:
    """No progress bars, warnings or log lines; what goes wrong is raised as an error here."""
    patch_torchvision()
    import transformers

    transformers_logging: Any = transformers.logging
    levels = {name: logging.getLogger(name).level for name in _LOGGERS}
    transformers_logging.disable_progress_bar()
    for name in levels:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers_logging.enable_progress_bar()
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


_WRITERS: dict[Format, Callable[[ExportModel, Path], WriteReport]] = {
    "hf": write_hf,
    "open_clip": write_open_clip,
    "onnx": write_onnx,
    "peft": write_adapter,
    "deltas": write_deltas,
}


@dataclass(frozen=True)
class Exported:
    """What was written, and how close it is to the model that it came from."""

    folder: Path
    """The folder that was written."""
    to: Format
    """The format."""
    files: list[str]
    """The files in the folder."""
    size: int
    """Bytes of all files."""
    max_difference: float
    """The largest difference of a feature between the model and its export, loaded again."""
    tolerance: float
    """The largest difference allowed."""


def export(model: ExportModel, to: Format, folder: str | Path) -> Exported:
    """Write the model for another library into a new folder, with a model card as its README.md.

    What was written is loaded again and compared before the folder appears: it is there whole and
    correct, or not at all.

    Args:
        model: The model, from `of_run` or `of_model`.
        to: `hf` for transformers, `open_clip`, `onnx`, `peft` for an adapter (what the run
            changed, without the model), or `deltas` (the same, for retouch).
        folder: The folder to write; it must not exist yet.
    """
    folder = Path(folder)
    if to not in FORMATS:
        raise UserError(f"unknown format {to!r}; choose one of {', '.join(FORMATS)}")
    refuse_existing(folder)
    check_weights(model.clip)
    _refuse_visual_prompts(model.clip)
    vectors = model.class_vectors
    if vectors is not None and to not in ("hf", "open_clip"):
        raise UserError(
            f"the model is unchanged, so {to!r} would hold nothing of what was learned: that is "
            "in its class vectors. Export to hf or open_clip, which writes them beside the model; "
            "or take the files in the folder class-vectors of the run"
        )
    with atomic_folder(folder) as part, silence_libraries():
        report = _WRITERS[to](model, part)
        if model.classes:
            (part / "classes.json").write_text(_classes_json(model.classes), "utf-8")
        if vectors is not None:
            save_class_vectors(vectors, part / CLASS_VECTORS_FILE)
        (part / "README.md").write_text(card(model, to, report), "utf-8")
    return exported(folder, to, report.difference, report.tolerance)


def exported(folder: Path, to: Format, difference: float, tolerance: float) -> Exported:
    """What is in a folder that was written."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [path.relative_to(folder).as_posix() for path in files]
    size = sum(path.stat().st_size for path in files)
    return Exported(folder, to, names, size, difference, tolerance)


def _classes_json(classes: Sequence[PromptedClass]) -> str:
    """The classes, the prompts of each and, where there are several, the data set of each."""
    lists = {
        "classes": [each.name for each in classes],
        "prompts": [each.prompts for each in classes],
    }
    if any(each.domain for each in classes):
        lists["data_sets"] = [each.domain for each in classes]
    return json.dumps(lists, indent=1, ensure_ascii=False)


def _refuse_visual_prompts(clip: Clip) -> None:
    prompts = prompts_of(clip.model)
    if prompts is not None:
        raise UserError(
            f"{prompts.kind} put prompts into the visual tower, and no other library's CLIP has a "
            "place for them: without them it is not what was learned. In Python, "
            "retouch.open_run(RUN).load_task().save(FOLDER) writes it for retouch only; to use the "
            "model without retouch, learn with a method that keeps a plain CLIP, such as spu"
        )
