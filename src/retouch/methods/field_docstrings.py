"""What the fields of a method or a part mean: the strings below them in the source.

Pydantic's `use_attribute_docstrings` reads them when a class is made, which would add a third of a
second to every start; here they are read when someone asks.
"""

import ast
import inspect
import textwrap
from itertools import pairwise

from pydantic import BaseModel


def field_docstrings(kind: type[BaseModel]) -> dict[str, str]:
    """The string below each field of a class, in one line; of inherited fields, too.

    Args:
        kind: A pydantic model whose source can be read.
    """
    docstrings: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if issubclass(base, BaseModel) and base is not BaseModel:
            docstrings |= _own_docstrings(base)
    return docstrings


def _own_docstrings(kind: type[BaseModel]) -> dict[str, str]:
    try:
        source = textwrap.dedent(inspect.getsource(kind))
    except (OSError, TypeError):  # typed into a shell
        return {}
    body = ast.parse(source).body[0].body  # type: ignore[attr-defined]
    docstrings = {}
    for field, below in pairwise(body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                docstrings[name] = " ".join(text.split())
    return docstrings
