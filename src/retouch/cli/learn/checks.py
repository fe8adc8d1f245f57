"""What `retouch learn` checks before it loads a model: options, paths, names, images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retouch.cli.images import find_control, find_pairs
from retouch.cli.learn.method import FinishedRun, choose_method
from retouch.cli.learn.sources import (
    check_classes,
    check_sources,
    find_sources,
    make_streams,
    read_tasks,
)
from retouch.errors import UserError

if TYPE_CHECKING:
    from retouch.cli.learn.config import DataOptions, LearnConfig, OutputOptions
    from retouch.data import Images, Pairs, Splits
    from retouch.methods import Method
    from retouch.train.estimate import Cost


@dataclass(frozen=True)
class Request:
    """What the user asked for, as objects of the library. No image is decoded yet."""

    settings: dict[str, Any]
    """The training settings that were given."""
    order: int | list[str]
    earlier: FinishedRun | None
    method: "Method"
    sources: "Mapping[str, Splits]"
    """What to learn, by the name of the data set."""
    tasks: int
    """How many tasks each data set is split into."""
    control: "Images | None"
    reference: "Pairs | None"


def check_request(config: "LearnConfig") -> Request:
    """Turn the options into a `Request`, the cheap checks first."""
    from retouch.data.check import add_control_note
    from retouch.methods import Settings
    from retouch.train.hardware import check_shard

    data, training, machine = config.data, config.training, config.machine
    if training.model is None and training.earlier is None:
        raise UserError("no model given; name one with --model, or a run to continue with --from")
    _refuse_run(training.model)
    _check_machine(training.model, machine.device, machine.precision)
    settings = training.model_dump(include={"epochs", "batch", "lr", "weight_decay", "seed"})
    settings |= machine.model_dump(include={"micro_batch"})
    settings = {name: value for name, value in settings.items() if value is not None}
    Settings.model_validate(settings)
    order, templates, tasks = read_order(data.order), data.template or [], read_tasks(data.tasks)
    check_sources(data, training.earlier)
    earlier = _find_earlier(training.earlier, config.output)
    _check_templates(templates, earlier)
    method = choose_method(training, earlier, data.control is not None)
    settings |= read_control_part(data, method)
    if machine.shard:
        check_shard(method, Settings(shard=True, compile=bool(machine.compiled)))
    method.check_needs(data.control is not None, data.reference is not None)
    sources = find_sources(data)
    control = find_control(data.control, data.data_root) if data.control else None
    if control is not None:
        control = add_control_note(control, [s.train for s in sources.values() if s.train])
    pairs = find_pairs(data.reference)
    streams = make_streams(sources, data.holdout, tasks, order)  # refuses what cannot be split
    learned = [name for task in earlier.results.tasks for name in task.classes] if earlier else []
    check_classes(streams, learned)
    return Request(settings, order, earlier, method, sources, tasks, control, pairs)


def check_output(config: "LearnConfig") -> None:
    """Refuse an --out that cannot hold the run, and loggers that cannot write."""
    from retouch.files.output_paths import check_folder
    from retouch.train.run_folder.files import check_page_folder, is_unused
    from retouch.train.run_folder.read import is_run
    from retouch.train.run_folder.set_aside import check_replaceable

    data, training, output = config.data, config.training, config.output
    folder = output.folder
    check_folder(folder)
    _refuse_inside_images(folder, data)
    if output.overwrite:
        for source in data.sources:
            sources = {"DATA": source, "--control": data.control, "--reference": data.reference}
            check_replaceable(
                folder, {**sources, "--model": training.model, "--from": training.earlier}
            )
    if not is_run(folder) and not is_unused(folder):
        raise UserError(f"{folder} is not empty and holds no run; choose another folder")
    check_page_folder(folder)
    if output.tensorboard:
        check_folder(output.tensorboard)
    if output.wandb:
        from retouch.train.callbacks.wandb import check_installed

        check_installed()


def _refuse_inside_images(folder: Path, data: "DataOptions") -> None:
    """The pictures of a run must not be found among the images of this run or the next."""
    sources = [("DATA", Path(source)) for source in data.sources]
    sources += [("--control", Path(data.control))] if data.control else []
    for name, path in sources:
        if path.is_dir() and folder.resolve().is_relative_to(path.resolve()):
            raise UserError(
                f"--out {folder} is inside {name} {path}, so the run's own pictures would become "
                "images of a class; choose a folder outside of it"
            )


def check_disk_space(folder: Path, cost: "Cost") -> None:
    """Refuse a run that will not fit on the disk."""
    from retouch.files.output_paths import free_bytes
    from retouch.plotting.formatting import file_size

    free = free_bytes(folder)
    if cost.disk > free:
        raise UserError(
            f"--out {folder}: the run will take about {file_size(cost.disk)} of disk, and there is "
            f"room for {file_size(free)}; free some space, or name another folder"
        )


def _refuse_run(model: str | None) -> None:
    from retouch.train.run_folder.read import is_run

    if model is not None and is_run(model):
        raise UserError(
            f"--model {model} is a run, not a model; continue it with --from {model}, or export "
            "its model first"
        )


def _check_machine(model: str | None, device: str, precision: str) -> None:
    from retouch.clip.loading.load import check_name, resolve_device
    from retouch.train.hardware import check_precision

    if model is not None:
        check_name(model)
    resolve_device(device)
    check_precision(precision)


def _find_earlier(run: Path | None, output: "OutputOptions") -> FinishedRun | None:
    """The run to continue, or the copy of it in the folder of an interrupted run."""
    from retouch.evaluate import Results
    from retouch.train.extend_stream import refuse_domains, refuse_unfinished, run_or_copy
    from retouch.train.run_folder.read import read_config

    if run is None:
        return None
    if run.resolve() == output.folder.resolve():
        raise UserError(f"--from {run} and --out are the same; continue a run in a new folder")
    folder = run_or_copy(run, output.folder, output.overwrite)
    config, results = read_config(folder), Results.read(folder)
    refuse_unfinished(folder, results)
    refuse_domains(folder, results)
    return FinishedRun(folder, config, results)


def _check_templates(templates: Sequence[str], earlier: FinishedRun | None) -> None:
    """Refuse templates without {}, and templates that differ from those of the earlier run."""
    from retouch.clip.text.zero_shot import fill_template

    for template in templates:
        fill_template(template, [])
    if templates and earlier:
        data = earlier.config["data"]
        if [data["prompt"], *data["templates"]] != [templates[0], *templates]:
            raise UserError(
                f"--template {templates[0]!r}: a continued run keeps the prompts of "
                f"{earlier.folder} ({data['prompt']!r}); leave --template out"
            )


def read_control_part(data: "DataOptions", method: "Method") -> dict[str, Any]:
    """The setting `control_part`, if it was given; refused where it would be ignored."""
    part = data.control_part
    if part is None:
        return {}
    if part != "all" and (not part.isdecimal() or int(part) < 1):
        raise UserError(f"--control-part {part}: use a number of images, such as 2000, or all")
    if data.control is None:
        raise UserError(f"--control-part {part}: there is no control set; name one with --control")
    if part != "all" and method.needs_control:
        raise UserError(
            f"--control-part {part}: a bound on what may be lost holds for all control images, so "
            "all of them are checked; leave --control-part out"
        )
    return {"control_part": part if part == "all" else int(part)}


def read_order(order: str) -> int | list[str]:
    if order.isdecimal():
        return int(order)
    if not Path(order).is_file():
        raise UserError(
            f"--order {order}: neither a number nor a file with one class name per line"
        )
    from retouch.data.formats.text_files import read_lines

    return read_lines(Path(order))
