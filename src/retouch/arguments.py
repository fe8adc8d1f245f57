"""Check the arguments of public functions against their annotations, before any work is done.

`@check_arguments()` turns what would be an exception deep inside into a sentence that names the
argument: "deltas[1] cannot be None; give a Delta". It checks types, and the choices of a `Literal`;
whether a value of the right type makes sense is for the function to say.
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial, wraps
from inspect import Parameter, signature
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from retouch.errors import UserError

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Remedy = str | Callable[[Any], str]
"""What to do about a wrong argument; or a function that says it, given the wrong value."""

_NAMES = {
    bool: ("True or False", "True or False"),
    float: ("a number", "numbers"),
    int: ("a whole number", "whole numbers"),
    str: ("a string", "strings"),
    Path: ("a path", "paths"),
    dict: ("a dict", "dicts"),
    NoneType: ("None", "None"),
}
"""What types are called in sentences; one, and many."""
_NOUNS = {
    "Module": "torch module",
    "Tensor": "tensor",
    "Parameter": "parameter",
    "Linear": "linear layer",
    "ndarray": "array",
}
"""The same for classes of torch and numpy, which are not imported here."""
_UNIONS = (Union, UnionType)
_LOOSE = (bool, int, float, Path, Mapping, Sequence, tuple, Iterable, Collection, Callable)
"""Types for which others are as good: see `_is_kind`."""
_MAX_NAME = 255
"""Bytes in the name of a file or folder."""


class _Misfit(NamedTuple):
    """A value that is not of the annotated type, perhaps inside of an argument."""

    place: str
    value: object
    annotation: Any


def check_fields(cls: type[T]) -> type[T]:
    """A decorator for dataclasses: refuse fields that are not of the annotated types.

    Args:
        cls: The dataclass.
    """
    cls.__init__ = check_arguments()(cls.__init__)  # type: ignore[method-assign]
    return cls


def check_arguments(**remedies: Remedy) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator: refuse arguments that are not of the annotated types.

    Args:
        **remedies: What to do, by the name of the argument, where the type does not say it all.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            arguments, annotations = _declared(function)
            for name, value in _bound(arguments, args, kwargs):
                for misfit in _misfits(value, annotations.get(name, Any), name):
                    raise _refusal(misfit, remedies.get(name))
            return function(*args, **kwargs)

        return checked

    return decorate


@cache
def _declared(function: Callable[..., Any]) -> tuple[list[Parameter], dict[str, Any]]:
    """The parameters of a function, and their annotations; found at the first call."""
    return list(signature(function).parameters.values()), get_type_hints(function)


def _bound(
    parameters: Sequence[Parameter], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """The arguments by name. Of a call that Python itself refuses, those that fit."""
    positional = [p.name for p in parameters if p.kind is not Parameter.KEYWORD_ONLY]
    yield from zip(positional, args, strict=False)
    yield from kwargs.items()


@cache
def _parts(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type without what it holds, and what it holds: `list` and `int` of `list[int]`."""
    kind, inner = get_origin(annotation) or annotation, get_args(annotation)
    if hasattr(kind, "__value__"):  # written with `type`, as numpy's NDArray is
        return _parts(kind.__value__[inner] if inner else kind.__value__)
    return kind, inner


@cache
def _check_for(annotation: Any) -> Callable[[Any], bool]:
    """A function that says whether a value, with all that it holds, is of the annotated type.

    Made once per annotation: functions that are called for every tensor must not be slowed down.
    """
    kind, inner = _parts(annotation)
    if kind is Any:
        return lambda value: True
    if kind is Annotated:
        return _check_for(inner[0])
    if kind in _UNIONS:
        checks, takes_paths = [_check_for(each) for each in inner], Path in inner
        return lambda value: (
            not (takes_paths and not _can_be_path(value)) and any(fits(value) for fits in checks)
        )
    if isinstance(kind, type) and not inner and kind not in _LOOSE:
        return lambda value: isinstance(value, kind)
    if kind in (Mapping, dict) and inner:
        fits_key, fits_value = map(_check_for, inner)
        return lambda value: (
            _is_kind(value, kind, inner)
            and all(fits_key(key) and fits_value(value[key]) for key in value.keys())  # noqa: SIM118
        )
    return lambda value: (
        _is_kind(value, kind, inner)
        and all(_check_for(each)(item) for _, item, each in _items(value, kind, inner))
    )


def _misfits(value: object, annotation: Any, place: str) -> Iterator[_Misfit]:
    """Where a value is not of the annotated type: itself, or what it holds."""
    if _check_for(annotation)(value):
        return
    kind, inner = _parts(annotation)
    if kind is Annotated:
        yield from _misfits(value, inner[0], place)
    elif kind in _UNIONS:
        # If it is a list where a list may be, say which of its items is wrong.
        of_each = (next(_misfits(value, each, place), None) for each in inner)
        inside = [misfit for misfit in of_each if misfit and misfit.place != place]
        yield inside[0] if inside else _Misfit(place, value, annotation)
    elif not _is_kind(value, kind, inner):
        yield _Misfit(place, value, annotation)
    else:
        for where, item, annotation_of_item in _items(value, kind, inner):
            yield from _misfits(item, annotation_of_item, where(place))


def _items(
    value: Any, kind: Any, inner: tuple[Any, ...]
) -> Iterator[tuple[Callable[[str], str], object, Any]]:
    """What a list or a dict holds: where, what, and its annotation. An iterator is left alone."""
    if kind in (Mapping, dict) and inner:
        for key in value.keys():  # noqa: SIM118 (torch's ParameterDict)
            yield "a name in {}".format, key, inner[0]
            yield partial(_inside, key), value[key], inner[1]
    elif kind is tuple and inner[-1:] != (...,):
        for number, (item, annotation) in enumerate(zip(value, inner, strict=True)):
            yield partial(_inside, number), item, annotation
    elif kind in (Sequence, Iterable, Collection, list, tuple) and inner and _has_length(value):
        for number, item in enumerate(value):
            yield partial(_inside, number), item, inner[0]


def _inside(key: object, place: str) -> str:
    return f"{place}[{key!r}]"


def _is_kind(value: object, kind: Any, inner: tuple[Any, ...]) -> bool:
    """Whether a value is of a type, without looking at what it holds."""
    is_text = isinstance(value, (str, bytes))
    if kind is Literal:
        return any(isinstance(value, type(choice)) and value == choice for choice in inner)
    if kind is bool:
        return isinstance(value, bool) or type(value).__name__ in ("bool", "bool_")  # numpy's
    if kind in (int, float):
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    if kind is Path:
        return isinstance(value, os.PathLike)
    if kind is Mapping:  # torch's ParameterDict is none of Python's mappings
        return hasattr(value, "keys") and hasattr(value, "__getitem__")
    if kind in (Sequence, tuple):  # an array is as good as a list
        if is_text or isinstance(value, Mapping) or not hasattr(value, "__getitem__"):
            return False
        fixed = kind is tuple and inner[-1:] != (...,)
        return _has_length(value, len(inner) if fixed else None)
    if kind in (Iterable, Collection):
        return not is_text and _is_iterable(value) and (kind is Iterable or _has_length(value))
    if kind is Callable:
        return callable(value)
    if isinstance(kind, TypeVar):
        return kind.__bound__ is None or isinstance(value, kind.__bound__)
    return isinstance(value, kind)


def _can_be_path(value: object) -> bool:
    """Whether a string or path could be one on disk: the system refuses some before it looks."""
    if not isinstance(value, str | os.PathLike):
        return True
    name = os.fsencode(value)
    return b"\0" not in name and all(len(part) <= _MAX_NAME for part in name.split(b"/"))


def _is_iterable(value: Any) -> bool:
    """Whether it can be iterated over; a tensor or array without dimensions cannot."""
    try:
        iter(value)
    except TypeError:
        return False
    return True


def _has_length(value: Any, length: int | None = None) -> bool:
    """Whether a value has this length, or any; an array without dimensions has none."""
    try:
        return length in (None, len(value))
    except TypeError:
        return False


def _refusal(misfit: _Misfit, remedy: Remedy | None) -> UserError:
    place, value, annotation = misfit
    if remedy is not None:
        return wrong_argument(place, value, remedy if isinstance(remedy, str) else remedy(value))
    if get_origin(annotation) is Literal:
        choices = ", ".join(map(str, get_args(annotation)))
        return UserError(f"{place}={value!r:.80} is unknown; choose {choices}")
    return wrong_argument(place, value, f"give {_described(annotation)}")


def wrong_argument(name: str, value: object, remedy: str) -> UserError:
    """The error for an argument of the wrong type.

    Args:
        name: The argument.
        value: Its value.
        remedy: What to give instead.
    """
    is_empty = isinstance(value, list | tuple | dict) and not value
    if is_empty or isinstance(value, str | Path | int | float | None):
        shown = f"{value!r:.80}"
    elif isinstance(value, type):
        shown = f"the class {value.__name__}"
    else:
        shown = _with_article(type(value).__name__)
    return UserError(f"{name} cannot be {shown}; {remedy}")


def _with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'AEIOUaeio' else 'a'} {noun}"


def _described(annotation: Any, many: bool = False) -> str:
    """A type in words: "a number", "a list of strings", "a path or None"."""
    kind, inner = _parts(annotation)
    if kind is Annotated:
        return _described(inner[0], many)
    if kind in _UNIONS:
        kinds = [each for each in inner if each is not str] if Path in inner else inner
        return " or ".join(_described(each, many) for each in kinds)
    if kind in _NAMES and not inner:
        return _NAMES[kind][many]
    if kind is Literal:
        return " or ".join(map(repr, inner))
    if kind is Callable:
        return "functions" if many else "a function"
    if kind in (Mapping, dict):
        values = "" if inner[1] is Any else f" of {_described(inner[1], many=True)} by name"
        return f"{'dicts' if many else 'a dict'}{values}"
    if kind is tuple and inner[-1:] != (...,):
        return f"{len(inner)} {_described(inner[0], many=True)}"
    if kind in (Sequence, Iterable, Collection, list, tuple):
        items = f" of {_described(inner[0], many=True)}" if inner else ""
        return f"{'lists' if many else 'a list'}{items}"
    if isinstance(kind, TypeVar):
        return _described(kind.__bound__, many)
    if noun := _NOUNS.get(kind.__name__):
        return f"{noun}s" if many else _with_article(noun)
    return f"{kind.__name__} objects" if many else _with_article(kind.__name__)
