"""Which files a run's folder holds, at any depth; only these are ever moved or deleted.

Whatever else is found there is somebody's own: a folder that holds such a thing is not replaced.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from retouch.errors import UserError
from retouch.evaluate import examples, per_class, results
from retouch.files.output_paths import SYSTEM_FILES, foreign_file
from retouch.train.run_folder import images
from retouch.train.run_folder.checkpoint import CHECKPOINT
from retouch.train.run_folder.metrics import METRICS
from retouch.train.run_folder.read import CLASS_VECTORS, CONFIG, DELTAS, is_run

COPY, OLD_COPY = "earlier", ".earlier.gone"
"""The copy of the run that an unfinished one continues, and what is left of it at the end."""
NEW, REPLACED, DELETED = ".new", ".replaced", ".deleted"
"""Runs in transit: being created, being replaced, and what is left of a deleted one."""
PAGE, PLOTS = "report.html", "plots"
_BRAND = b'<p class="brand">retouch'  # on every page
_MAX_NAMED = 3


@dataclass(frozen=True)
class _Layout:
    """What may be in a folder: files by their patterns, and folders."""

    files: tuple[str, ...]
    folders: dict[str, "_Layout"] = field(default_factory=dict)

    def has_file(self, name: str) -> bool:
        """Whether a file of this name belongs here, or is a temporary copy of one that does."""
        whole = name[1:-5] if name.startswith(".") and name.endswith(".part") else name
        known = (*self.files, *SYSTEM_FILES)
        return any(fnmatchcase(part, pattern) for part in (name, whole) for pattern in known)


_NUMBER = "[0-9][0-9]*"
_PLOT_NAMES = ("learned-and-forgot", "over-time", "matrix*", "loss", "where-it-moved", "overlap")
_IMAGES, _EXAMPLES = _Layout(images.FILES), _Layout(examples.FILES)
_ANALYSES = {
    name: _Layout((*(f"{name}.{suffix}" for suffix in ("png", "svg", "csv", "json")), *more))
    for name, more in {
        "overlap": (),
        "domains": (),
        "cam": (),
        "trace": ("settings.json", "pairs.jsonl"),
    }.items()
}
_RUN = _Layout(
    (
        CONFIG,
        results.FILE,
        per_class.FILE,
        METRICS,
        CHECKPOINT,
        f"state-{_NUMBER}.safetensors",
        PAGE,
    ),
    {
        DELTAS: _Layout((f"task-{_NUMBER}.safetensors",)),
        CLASS_VECTORS: _Layout((f"task-{_NUMBER}.safetensors",)),
        per_class.EXAMPLES: _EXAMPLES,
        f".{per_class.EXAMPLES}.part": _EXAMPLES,
        images.FOLDER: _IMAGES,
        f".{images.FOLDER}.part": _IMAGES,
        PLOTS: _Layout(
            tuple(f"{name}.{suffix}" for name in _PLOT_NAMES for suffix in ("png", "svg"))
        ),
        "analysis": _Layout((), _ANALYSES),
    },
)
_RUN.folders.update(dict.fromkeys((COPY, OLD_COPY, NEW, REPLACED, DELETED), _RUN))
_SET_APART = (*SYSTEM_FILES, NEW, REPLACED, DELETED)
"""What a folder may hold besides a run of its own."""


def is_unused(folder: Path) -> bool:
    """Whether a folder is missing, or holds nothing but what a killed process left behind."""
    return not folder.exists() or not any(path.name not in _SET_APART for path in folder.iterdir())


def refuse_foreign(folder: Path) -> None:
    """Refuse to replace a folder with anything in it, at any depth, that no run wrote there."""
    foreign = [str(path.relative_to(folder)) for path in _foreign(folder, _RUN)]
    if not foreign:
        return
    named = sorted(foreign)[:_MAX_NAMED]
    more = f" and {len(foreign) - len(named):,} more" if len(foreign) > len(named) else ""
    raise UserError(
        f"{folder} cannot be overwritten: besides the run it holds {', '.join(named)}{more}, which "
        "would be lost; move that away, or choose another folder"
    )


def _foreign(folder: Path, layout: _Layout) -> Iterator[Path]:
    for path, inner in _entries(folder, layout):
        if inner is None:
            yield path
        elif isinstance(inner, _Layout):
            yield from _foreign(path, inner)


def _entries(folder: Path, layout: _Layout) -> list[tuple[Path, "_Layout | bool | None"]]:
    """What a folder holds: each with its layout if it is a folder, and None if it is foreign.

    A run writes no links, so a link is foreign.
    """
    entries: list[tuple[Path, _Layout | bool | None]] = []
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_dir(follow_symlinks=False):
            entries.append((Path(entry), layout.folders.get(entry.name)))
        else:
            own = not entry.is_symlink() and layout.has_file(entry.name)
            entries.append((Path(entry), own or None))
    return entries


def check_page_folder(folder: str | Path) -> None:
    """Refuse a folder with a page or plots that `write_report` would replace, but did not write.

    Args:
        folder: The folder that is to hold the page.
    """
    page, plots = Path(folder) / PAGE, Path(folder) / PLOTS
    if page.exists():
        if not page.is_file() or _BRAND not in page.read_bytes():
            raise foreign_file(page)
    elif not is_run(folder) and (files := sorted(plots.glob("[!.]*"))):
        raise foreign_file(files[0])


def delete_run(folder: Path) -> None:
    """Delete a run; anything else in its folder stays, and so does a run that is set apart.

    What is left if this is killed is no run, and `DELETED` says that it may be deleted.
    """
    deleted = folder / DELETED
    deleted.mkdir(exist_ok=True)
    (folder / CONFIG).replace(deleted / CONFIG)
    delete_rest(folder)


def delete_rest(folder: Path) -> None:
    """Delete what is left of a run that was being created or deleted."""
    for path, inner in _entries(folder, _RUN):
        if path.name not in _SET_APART:
            _delete(path, inner)
    for name in (NEW, DELETED):
        delete_run_folder(folder / name)


def delete_weights(folder: Path) -> None:
    """Delete deltas, checkpoint and state of a run; its results stay."""
    for path, inner in _entries(folder, _RUN):
        if path.name == DELTAS or path.suffix == ".safetensors":
            _delete(path, inner)


def delete_run_folder(folder: Path) -> None:
    """Delete a folder that a run was moved to, with all that the run wrote."""
    if folder.is_dir():
        _delete(folder, _RUN)


def _delete(path: Path, inner: "_Layout | bool | None") -> None:
    if isinstance(inner, _Layout):
        for entry in _entries(path, inner):
            _delete(*entry)
        with suppress(OSError):  # it holds something foreign
            path.rmdir()
    elif inner:
        path.unlink(missing_ok=True)


def move_run(source: Path, target: Path, *, config_first: bool = False) -> None:
    """Move the files of a run one by one. Its config is the last, or the first.

    So it tells, after a kill, how far this was: a folder without it holds no run.
    """
    target.mkdir(exist_ok=True)
    entries = [entry for entry in _entries(source, _RUN) if entry[0].name not in _SET_APART]
    for path, inner in sorted(entries, key=lambda e: (e[0].name == CONFIG) != config_first):
        if inner:
            _move(path, target / path.name)


def _move(path: Path, target: Path) -> None:
    """Move a file or folder; what a folder of that name already holds stays there."""
    if path.is_dir() and target.is_dir():
        for entry in path.iterdir():
            _move(entry, target / entry.name)
        path.rmdir()
    else:
        path.replace(target)
