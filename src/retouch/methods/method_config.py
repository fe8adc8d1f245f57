"""A method in a run's config: each part with its class and all its settings, as plain data.

`read_method` gives back exactly the method that `method_config` was called with. What a file says
is data: a class is looked up among those that are imported already, and those of the methods that
installed packages offer (`registry`). Nothing is imported because a file names it.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError

from retouch.errors import UserError, first_problem, message_of
from retouch.methods.method import PARTS, Method
from retouch.methods.part_classes import known_classes, part_name
from retouch.methods.parts import Part, parts_in
from retouch.methods.registry import available_methods, loading_problem

CLASS = "class"
"""The key of a part's class. It is a keyword of Python, so no setting has this name."""


def method_config(method: Method) -> dict[str, Any]:
    """A method as plain data, for a config or a header.

    Args:
        method: The method.
    """
    return dict(_to_data(method, method.name))


def read_method(stored: Any, where: str) -> Method:
    """The method that `method_config` was called with.

    Args:
        stored: What it returned.
        where: The file that holds it, for errors.
    """
    try:
        check_method_config(stored, where)
        method = _Reader(stored["name"], where).read(stored, "method")
        if not isinstance(method, Method):
            raise _damaged(where, f"{stored[CLASS]} is no method")
        if path := _difference(stored, method_config(method), "method"):
            raise _damaged(where, f"{path} is not what a run writes there")
    except RecursionError:
        raise _damaged(where, "method is nested too deeply") from None
    return method


def check_method_config(stored: Any, where: str) -> None:
    """Refuse what cannot be a method, without looking for its classes.

    Args:
        stored: What `method_config` should have returned.
        where: The file that holds it, for errors.
    """
    _check_model(stored, "method", where)
    for name in Method.model_fields:
        if name not in stored:
            raise _damaged(where, f"method.{name} is missing")
    for name in PARTS:
        _check_model(stored[name], f"method.{name}", where)
    for name, kind in {"name": str, "store_images": bool}.items():
        if not isinstance(stored[name], kind):
            raise _damaged(where, f"method.{name} is {stored[name]!r:.60}")


def _check_model(stored: Any, path: str, where: str) -> None:
    if not isinstance(stored, Mapping):
        kind = "a method" if path == "method" else "a part with its class and settings"
        raise _damaged(where, f"{path} is {stored!r:.60}, not {kind}")
    if CLASS not in stored:
        raise _damaged(where, f"{path}.{CLASS} is missing")
    if not isinstance(name := stored[CLASS], str):
        raise _damaged(where, f"{path}.{CLASS} is {name!r:.60}, not the name of a class")


def _damaged(where: str, problem: str) -> UserError:
    return UserError(
        f"{where} is damaged or was written by another version of retouch: {problem}; take another "
        "copy of the run"
    )


def _to_data(value: Any, owner: str) -> Any:
    """Parts wherever they are, in lists and dictionaries, too; the rest as pydantic writes it."""
    if isinstance(value, Part | Method):
        fields = type(value).model_fields
        parts = {n: getattr(value, n) for n in fields if [*parts_in(getattr(value, n))]}
        try:
            settings = value.model_dump(mode="json", exclude=set(parts))
        except PydanticSerializationError as why:
            raise UserError(
                f"{owner} has a setting that cannot be stored ({message_of(why)}); use numbers, "
                "words and lists of them"
            ) from None
        data = settings | {n: _to_data(p, f"the {n} of {owner}") for n, p in parts.items()}
        return {CLASS: part_name(type(value)), **{n: data[n] for n in fields if n in data}}
    if isinstance(value, Mapping):
        return {key: _to_data(item, owner) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_data(item, owner) for item in value]
    return value


class _Reader:
    """Rebuilds a method from a file."""

    def __init__(self, name: str, where: str) -> None:
        self._name = name
        self._where = where
        self._classes = self._known()

    def read(self, stored: Any, path: str) -> Any:
        """What was stored at a path, with parts as objects."""
        if isinstance(stored, list):
            return [self.read(item, f"{path}.{number}") for number, item in enumerate(stored)]
        if not isinstance(stored, Mapping):
            return stored
        settings = {k: self.read(v, f"{path}.{k}") for k, v in stored.items() if k != CLASS}
        if CLASS not in stored:
            return settings
        _check_model(stored, path, self._where)
        return self._build(self._find(stored[CLASS], path), settings, path)

    def _build(self, kind: type[BaseModel], settings: dict[str, Any], path: str) -> BaseModel:
        fields = kind.model_fields.items()
        if missing := [n for n, field in fields if n not in settings and not field.exclude]:
            raise _damaged(self._where, f"{path}.{missing[0]} is missing")
        try:
            return kind(**settings)
        except ValidationError as why:
            within = "." if why.errors()[0]["loc"] else ": "
            raise _damaged(self._where, f"{path}{within}{first_problem(why)}") from None

    def _find(self, name: str, path: str) -> type[BaseModel]:
        if name not in self._classes:
            available_methods()  # imports those of installed packages
            self._classes = self._known()
        if name in self._classes:
            return self._classes[name]
        problem = loading_problem(self._name)
        raise UserError(
            f"{self._where}: the {path.removeprefix('method.')} of {self._name} is {name}, which "
            "is unknown here; install the package that defines it, or import it first"
            + (f" ({problem})" if problem else "")
        )

    @staticmethod
    def _known() -> dict[str, type[BaseModel]]:
        return {**known_classes(Part), **known_classes(Method)}


def _difference(stored: Any, written: Any, path: str) -> str:
    """The path of the first difference; empty if there is none."""
    if isinstance(stored, Mapping) and isinstance(written, Mapping):
        differences = (
            _difference(stored.get(key), written.get(key), f"{path}.{key}")
            for key in (*stored, *written)
        )
        return next(filter(None, differences), "")
    same = stored == written and isinstance(stored, bool) == isinstance(written, bool)
    return "" if same else path
