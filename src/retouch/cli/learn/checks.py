"""What `retouch learn` checks before it makes a plan, and how it reads its options."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from retouch.errors import UserError
from retouch.text.parsing import parse_user_yaml

if TYPE_CHECKING:
    from retouch.cli.learn.config import DataOptions, LearnConfig
    from retouch.train.estimate import Cost


def plan_arguments(config: "LearnConfig") -> dict[str, Any]:
    """The options as arguments of `retouch.plan`."""
    from retouch.data.class_names import read_class_names

    data, training, machine = config.data, config.training, config.machine
    if training.model is None and training.earlier is None:
        raise UserError("no model given; name one with --model, or a run to continue with --from")
    settings = training.model_dump(include={"epochs", "batch", "lr", "weight_decay", "seed"})
    settings |= machine.model_dump(include={"micro_batch", "precision", "shard"})
    settings["compile"] = machine.compiled
    return {
        "data": data.sources,
        "model": training.model,
        "method": training.method,
        "change": read_changes(training.change or []),
        "settings": settings,
        "control": data.control,
        "reference": data.reference,
        "earlier": _earlier(config),
        "max_drop": training.max_drop,
        "replay": _read_replay(training.replay),
        "tasks": _read_tasks(data.tasks),
        "order": _read_order(data.order),
        "holdout": data.holdout,
        "choices": data.choices,
        "names": read_class_names(data.names) if data.names else None,
        "templates": data.template or (),
        "random_weights": training.random_weights,
        "root": data.data_root,
        "use_cache": not data.no_cache and not config.output.dry_run,
        "skip_bad": data.skip_bad,
        "light": True,
    }


def _earlier(config: "LearnConfig") -> Path | None:
    """The run to continue, or the copy of it in the folder of an interrupted run."""
    from retouch.train.extend_stream import run_or_copy

    run, output = config.training.earlier, config.output
    if run is None:
        return None
    if run.resolve() == output.folder.resolve():
        raise UserError(f"--from {run} and --out are the same; continue a run in a new folder")
    return run_or_copy(run, output.folder, output.overwrite)


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


def _read_replay(replay: str | None) -> int | str | None:
    if replay is None or replay == "none":
        return replay
    if not replay.isdecimal() or int(replay) < 1:
        raise UserError(f"--replay {replay}: use a number of images, such as 200, or none")
    return int(replay)


def _read_tasks(tasks: str) -> int:
    """How many tasks a data set is split into."""
    if tasks == "each":
        return 1
    if not tasks.isdecimal() or int(tasks) < 1:
        raise UserError(f"--tasks {tasks}: use a number of tasks, such as 5, or each")
    return int(tasks)


def _read_order(order: str) -> int | list[str]:
    if order.isdecimal():
        return int(order)
    if not Path(order).is_file():
        raise UserError(
            f"--order {order}: neither a number nor a file with one class name per line"
        )
    from retouch.data.formats.text_files import read_lines

    return read_lines(Path(order))


def read_changes(pairs: list[str]) -> dict[str, Any]:
    """The changes of `--set`, by the name of the setting."""
    changes = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"--set {pair}: write NAME=VALUE, such as update.rate=0.05")
        is_pattern = value.startswith("*")  # of names; YAML would take it for an alias
        changes[name] = value if is_pattern else parse_user_yaml(value, f"--set {pair}")
    return changes
