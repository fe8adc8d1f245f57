"""What `retouch learn` can refuse before it loads a model: options, places, names, images."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retouch.cli.images import find_control, find_images, find_pairs
from retouch.errors import UserError

if TYPE_CHECKING:
    from retouch.data import Images, Pairs, Splits
    from retouch.learn import Results
    from retouch.learn.cost import Cost
    from retouch.methods import Method


@dataclass(frozen=True)
class Finished:
    """A run to go on from, without its model."""

    folder: Path
    config: dict[str, Any]
    results: "Results"


@dataclass(frozen=True)
class Found:
    """The images that a run was given; none is decoded yet."""

    data: "Splits"
    control: "Images | None"
    reference: "Pairs | None"


def check_out(folder: Path, overwrite: bool, sources: dict[str, str | Path | None]) -> None:
    """Refuse an --out that cannot hold the run. `sources` are what it reads, by option."""
    from retouch.learn.reopen import is_run
    from retouch.learn.replace import check_replaceable
    from retouch.output import check_folder, check_new

    if overwrite:
        check_replaceable(folder, sources)
    elif folder.is_dir() and not is_run(folder) and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty and holds no run; choose another folder")
    check_folder(folder)
    if not is_run(folder):
        check_new(folder)


def check_room(folder: Path, cost: "Cost") -> None:
    """Refuse a run that will not fit on the disk."""
    from retouch.output import free_bytes
    from retouch.report.words import file_size

    free = free_bytes(folder)
    if cost.disk > free:
        raise UserError(
            f"--out {folder}: the run will take about {file_size(cost.disk)} of disk, and there is "
            f"room for {file_size(free)}; free some space, or name another folder"
        )


def check_machine(model: str | None, device: str, precision: str) -> None:
    """Refuse a model, a device or a precision that there is not."""
    from retouch.clip.load import check_name, find_device
    from retouch.learn.hardware import check_precision

    if model is not None:
        check_name(model)
    find_device(device)
    check_precision(precision)


def find_finished(goes_on_from: Path | None, folder: Path, overwrite: bool) -> Finished | None:
    """The run to go on from: it, or the copy of it that an interrupted run keeps."""
    from retouch.learn import Results
    from retouch.learn.onward import refuse_unfinished, run_or_copy
    from retouch.learn.reopen import read_config

    if goes_on_from is None:
        return None
    if goes_on_from.resolve() == folder.resolve():
        raise UserError(f"--from {goes_on_from} and --out are the same; a run goes on in a new one")
    place = run_or_copy(goes_on_from, folder, overwrite)
    config, results = read_config(place), Results.read(place)
    refuse_unfinished(place, results)
    return Finished(place, config, results)


def check_templates(templates: Sequence[str], run: Finished | None) -> None:
    """Refuse templates without a place for the name, and others than those of an earlier run."""
    from retouch.clip.prompts import fill

    for template in templates:
        fill(template, [])
    if templates and run:
        data = run.config["data"]
        if [data["prompt"], *data["templates"]] != [templates[0], *templates]:
            raise UserError(
                f"--template {templates[0]!r}: a run that goes on keeps the prompts of "
                f"{run.folder} ({data['prompt']!r}); leave --template out"
            )


def find_everything(
    method: "Method",
    data: str,
    control: str | None,
    reference: str | None,
    root: Path | None,
) -> Found:
    """The images by their names; what the method needs and was not named is refused first."""
    from retouch.data.remarks import remark

    method.check_needs(control is not None, reference is not None)
    found = remark(find_images(data, root))
    judged = find_control(control, root) if control else None
    return Found(found, judged, find_pairs(reference))


def check_stream(data: "Splits", holdout: float, tasks: int, order: int | list[str]) -> None:
    """Refuse images that cannot be divided into these tasks, before they are decoded."""
    from retouch.data import Stream

    Stream.split(*data.to_learn(holdout), tasks=tasks, order=order)
