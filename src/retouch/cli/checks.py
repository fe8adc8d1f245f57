"""What `retouch learn` can refuse before it loads a model: options, places, names, images."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retouch.cli.images import find_control, find_images, find_pairs
from retouch.errors import UserError

if TYPE_CHECKING:
    from retouch.data import Images, Pairs, Splits
    from retouch.evaluate import Results
    from retouch.methods import Method
    from retouch.train.cost import Cost


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
    from retouch.output_paths import check_folder, check_new_file
    from retouch.train.run_folder import is_run
    from retouch.train.set_aside import check_replaceable

    if overwrite:
        check_replaceable(folder, sources)
    elif folder.is_dir() and not is_run(folder) and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty and holds no run; choose another folder")
    check_folder(folder)
    if not is_run(folder):
        check_new_file(folder)


def check_room(folder: Path, cost: "Cost") -> None:
    """Refuse a run that will not fit on the disk."""
    from retouch.output_paths import free_bytes
    from retouch.report.phrasing import file_size

    free = free_bytes(folder)
    if cost.disk > free:
        raise UserError(
            f"--out {folder}: the run will take about {file_size(cost.disk)} of disk, and there is "
            f"room for {file_size(free)}; free some space, or name another folder"
        )


def check_machine(model: str | None, device: str, precision: str) -> None:
    """Refuse a model, a device or a precision that there is not."""
    from retouch.clip.load import check_name, resolve_device
    from retouch.train.hardware import check_precision

    if model is not None:
        check_name(model)
    resolve_device(device)
    check_precision(precision)


def find_finished(goes_on_from: Path | None, folder: Path, overwrite: bool) -> Finished | None:
    """The run to go on from: it, or the copy of it that an interrupted run keeps."""
    from retouch.evaluate import Results
    from retouch.train.extend_stream import refuse_unfinished, run_or_copy
    from retouch.train.run_folder import read_config

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
    from retouch.clip.zero_shot import fill_template

    for template in templates:
        fill_template(template, [])
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
    from retouch.data.dataset_notes import dataset_notes

    method.check_needs(control is not None, reference is not None)
    found = dataset_notes(find_images(data, root))
    judged = find_control(control, root) if control else None
    return Found(found, judged, find_pairs(reference))


def check_stream(data: "Splits", holdout: float, tasks: int, order: int | list[str]) -> None:
    """Refuse images that cannot be divided into these tasks, before they are decoded."""
    from retouch.data import Stream

    Stream.split(*data.train_and_test(holdout), tasks=tasks, order=order)
