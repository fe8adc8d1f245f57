"""A model defined by the user: `FILE.py:FUNCTION`, a function that returns a `Clip`.

The file is executed like any script, so only a name that the user typed may get here. A name read
from a run or a delta must pass through `refuse_code` first, so that opening somebody's folder never
runs the code that it names.
"""

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from retouch.clip.model import Clip
from retouch.errors import UserError


def names_code(name: str) -> bool:
    """Whether a model's name is a function in a Python file."""
    return name.partition("@hf:")[0].rpartition(":")[0].endswith(".py")


def refuse_code(name: str, source: str | Path, role: str = "model") -> None:
    """Raise an error if `name`, read from the file `source`, names code.

    `role` is what the user must name explicitly to have it run: the model, or the base of a delta.
    """
    if names_code(name):
        raise UserError(
            f"{source} was made with {name}, a model in Python code, which is not run unless you "
            f"name it yourself: give {name}, or where it is now, as the {role}"
        )


def check_code(name: str) -> None:
    """Refuse a file that does not exist, without running anything."""
    file, _, function = name.rpartition(":")
    if not Path(file).is_file():
        raise UserError(f"model {name}: there is no file {file}")
    if not function.isidentifier():
        raise UserError(f"model {name}: {function!r} cannot be a function; write FILE.py:FUNCTION")


def load_user_model(name: str) -> Clip:
    """Execute the file, call the function, and check that it returns a `Clip`."""
    check_code(name)
    file, _, function_name = name.rpartition(":")
    path = Path(file).resolve()
    module = _explain_errors(name, path, lambda: _import_file(path))
    function = getattr(module, function_name, None)
    if not callable(function):
        defined = [key for key, value in vars(module).items() if _defined_in(module, value)]
        listed = f"it defines {', '.join(defined)}" if defined else "it defines no function"
        raise UserError(f"model {name}: there is no function {function_name} in {file}; {listed}")
    clip = _explain_errors(name, path, function)
    if not isinstance(clip, Clip):
        raise UserError(
            f"model {name}: {function_name}() returned a {type(clip).__name__}; it must return a "
            "retouch.Clip, such as "
            "retouch.DualEncoder(image_encoder, text_encoder, tokenize, preprocess)"
        )
    clip.name = name
    clip.model.eval()
    return clip


def _import_file(path: Path) -> ModuleType:
    """Import a file by its path; it can import the modules in its folder, as a script can."""
    spec = importlib.util.spec_from_file_location(f"retouch_user_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _explain_errors(name: str, path: Path, call: Callable[[], Any]) -> Any:
    """Turn an error in the user's file into one sentence with the line number."""
    try:
        return call()
    except UserError:
        raise
    except SyntaxError as error:
        raise UserError(f"model {name}: line {error.lineno} of {path}: {error.msg}") from None
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if Path(frame.filename) == path]
        location = f"line {lines[-1]} of {path}" if lines else str(path)
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"model {name}: {location}: {type(error).__name__}: {reason}") from error


def _defined_in(module: ModuleType, value: object) -> bool:
    return inspect.isfunction(value) and value.__module__ == module.__name__
