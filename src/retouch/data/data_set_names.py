"""What the data sets of a stream are called."""

from collections.abc import Sequence
from pathlib import Path

from retouch.data.registry import find_benchmark
from retouch.errors import UserError

BUILTIN = "builtin:"
"""What the names of pictures that come with the package begin with."""


def data_set_name(source: str) -> str:
    """What a data set is called in a stream: `dtd` for `dtd:coop`, and the last part of a path."""
    if benchmark := find_benchmark(source):
        return benchmark.name
    return Path(source).name.removeprefix(BUILTIN) or source


def data_set_names(sources: Sequence[str]) -> list[str]:
    """A name for each data set; if the short ones are not different, they are called as given."""
    short = [data_set_name(source) for source in sources]
    names = short if len(set(short)) == len(short) else list(sources)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"{twice} is given twice; name each data set once")
    return names
