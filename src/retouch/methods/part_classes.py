"""The classes of parts by name, as `--set` and a run's config name them."""

from collections.abc import Iterator
from typing import TypeVar

from pydantic import BaseModel

Model = TypeVar("Model", bound=BaseModel)


def part_name(kind: type[BaseModel]) -> str:
    """The name that a class is found by again.

    `Interpolate` for a class of this package, wherever it lies in it;
    `my_package.methods.Anchor` for a class from elsewhere.

    Args:
        kind: The class of a part.
    """
    own = kind.__module__.partition(".")[0] == __name__.partition(".")[0]
    return kind.__qualname__ if own else f"{kind.__module__}.{kind.__qualname__}"


def known_classes(base: type[Model]) -> dict[str, type[Model]]:
    """A class and all its subclasses that are imported and can be instantiated, by name.

    Of two classes with one name the later counts: a cell of a notebook was run again.

    Args:
        base: What the classes have in common, such as `Regularizer`.
    """
    return {part_name(kind): kind for kind in _subclasses(base)}


def find_class(base: type[Model], name: str) -> type[Model] | None:
    """The class with a name, which for one from elsewhere may also be its last word.

    Args:
        base: What the class must be or inherit from.
        name: Such as `Interpolate`, `Anchor` or `my_package.methods.Anchor`.
    """
    classes = known_classes(base)
    matches = [kind for kind in classes.values() if kind.__name__ == name]
    return classes.get(name) or (matches[0] if len(matches) == 1 else None)


def _subclasses(base: type[Model]) -> Iterator[type[Model]]:
    if not getattr(base, "__abstractmethods__", None):
        yield base
    for kind in base.__subclasses__():
        yield from _subclasses(kind)
