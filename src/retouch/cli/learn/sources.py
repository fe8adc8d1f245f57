"""What `retouch learn` learns from: one data set, or several, one after the other."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from retouch.cli.images import find_images, with_names
from retouch.errors import UserError

if TYPE_CHECKING:
    from retouch.cli.learn.config import DataOptions
    from retouch.data import Splits, Stream


def read_tasks(tasks: str) -> int:
    """How many tasks a data set is split into."""
    if tasks == "each":
        return 1
    if not tasks.isdecimal() or int(tasks) < 1:
        raise UserError(f"--tasks {tasks}: use a number of tasks, such as 5, or each")
    return int(tasks)


def check_sources(data: "DataOptions", earlier: Path | None) -> None:
    """Refuse DATA as the control set, and options that are for one data set, or for several."""
    control = Path(data.control) if data.control else None
    for source in map(Path, data.sources):
        if control and control.exists() and source.exists() and source.samefile(control):
            raise UserError(
                f"--control {data.control} is what is to be learned; name images of what the model "
                "could do before"
            )
    if len(data.sources) == 1:
        if data.choices:
            raise UserError(
                f"--choices {data.choices} is for several data sets, and there is one; leave it out"
            )
        return
    single: dict[str, object] = {"--names": data.names, "--from": earlier}
    single |= {} if data.order.isdecimal() else {"--order": data.order}
    for option, value in single.items():
        if value:
            raise UserError(
                f"{option} {value} is for one data set, and there are {len(data.sources)}; leave "
                "it out, or learn one at a time"
            )


def find_sources(data: "DataOptions") -> "dict[str, Splits]":
    """The images of each data set under its name; none is decoded yet."""
    from retouch.data.check import add_dataset_notes
    from retouch.data.class_names import read_class_names
    from retouch.data.registry import data_set_names

    names = read_class_names(data.names) if data.names else {}
    templates = data.template or []
    return {
        name: add_dataset_notes(find_images(source, data.data_root)).map(
            lambda part: with_names(part, names, templates)
        )
        for name, source in zip(data_set_names(data.sources), data.sources, strict=True)
    }


def make_streams(
    sources: "Mapping[str, Splits]", holdout: float, tasks: int, order: int | list[str]
) -> "dict[str, Stream]":
    """A stream for each data set."""
    from retouch.data import Stream

    return {
        name: Stream.split(*splits.train_and_test(holdout), tasks=tasks, order=order)
        for name, splits in sources.items()
    }


def check_classes(streams: "Mapping[str, Stream]", learned: Sequence[str]) -> None:
    """Refuse a single class, with nothing to tell it apart from, and names that CLIP confuses.

    Args:
        streams: What to learn, by the name of the data set.
        learned: The classes of the run to continue; none for a new run.
    """
    from retouch.data.images import refuse_confusable_classes

    new = [name for stream in streams.values() for name in stream.train.classes]
    classes = list(dict.fromkeys([*learned, *new]))
    if len(classes) == 1:
        raise UserError(
            f"there is only one class, {classes[0]!r}, and nothing to tell it apart from; add a "
            "folder with images of something else"
        )
    if learned:  # those of one data set are compared already, and several may share names
        refuse_confusable_classes("the new classes and those learned before", classes)
