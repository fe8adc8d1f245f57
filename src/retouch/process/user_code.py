"""Call code that is not ours: a model in a Python file, a method of an installed package."""

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from retouch.errors import UserError, message_of, system_limit

Result = TypeVar("Result")


def call_user_code(label: str, call: Callable[[], Result], file: Path | None = None) -> Result:
    """Call it, and turn whatever it raises into a `UserError` that names the code.

    That includes `sys.exit`, which would end the program as if it had done its work. Only Ctrl-C
    and limits of the system pass: they are not the code's fault.

    Args:
        label: What the code is, as the beginning of a sentence: `model models.py:load`.
        call: A function without arguments.
        file: The code's file; the error names the line in it.
    """
    try:
        return call()
    except KeyboardInterrupt:
        raise
    except UserError as why:
        raise UserError(f"{label}: {why.message}", argument=why.argument) from why
    except SyntaxError as why:
        location = f"line {why.lineno} of {why.filename}"
        raise UserError(f"{label}: {location}: {why.msg}") from None
    except BaseException as why:
        if system_limit(why):
            raise
        raise UserError(f"{label}: {_location(why, file)}{_reason(why)}") from why


def _location(why: BaseException, file: Path | None) -> str:
    if file is None:
        return ""
    frames = traceback.extract_tb(why.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename) == file]
    return f"line {lines[-1]} of {file}: " if lines else f"{file}: "


def _reason(why: BaseException) -> str:
    if isinstance(why, SystemExit):
        return f"it ends the program (sys.exit({why.code!r})); it must return or raise an error"
    kind, message = type(why).__name__, message_of(why)
    return message if message.startswith(kind) else f"{kind}: {message}"
