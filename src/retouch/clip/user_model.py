"""A model of one's own on the command line: `FILE.py:FUNCTION`, which returns a `Clip`.

The file is run as any script is: only a name that the user typed may get here. A name that was read
from a run or a delta must be passed through `refuse_code` first, so that opening somebody's folder
never runs the code that it names.
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
    return name.rpartition(":")[0].endswith(".py")


def refuse_code(name: str, where: str | Path, option: str = "--model") -> None:
    """Code that a file names is not run before the user has named it as well."""
    if names_code(name):
        raise UserError(
            f"{where} was made with {name}, a model in Python code, which is not run unless you "
            f"say so: give it as {option} {name}, or the place where it is now"
        )


def check_code(name: str) -> None:
    """Refuse a file that does not exist."""
    file, _, function = name.rpartition(":")
    if not Path(file).is_file():
        raise UserError(f"--model {name}: there is no file {file}")
    if not function.isidentifier():
        raise UserError(
            f"--model {name}: {function!r} cannot be a function; write FILE.py:FUNCTION"
        )


def load_user_model(name: str) -> Clip:
    """Run the file, call the function, and take what it returns if that is a `Clip`."""
    check_code(name)
    file, _, wanted = name.rpartition(":")
    path = Path(file).resolve()
    module = _explained(name, path, lambda: _run(path))
    function = getattr(module, wanted, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if _defined_in(module, value)]
        there = f"it defines {', '.join(known)}" if known else "it defines no function"
        raise UserError(f"--model {name}: there is no function {wanted} in {file}; {there}")
    clip = _explained(name, path, function)
    if not isinstance(clip, Clip):
        raise UserError(
            f"--model {name}: {wanted}() returned a {type(clip).__name__}; it must return a "
            "retouch.Clip, such as retouch.DualEncoder(images, texts, tokenize, pixels)"
        )
    clip.name = name
    clip.model.eval()
    return clip


def _run(path: Path) -> ModuleType:
    """Import a file by its path; it finds the modules beside it, as a script does."""
    spec = importlib.util.spec_from_file_location(f"retouch_own_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _explained(name: str, path: Path, call: Callable[[], Any]) -> Any:
    """An error in the user's file as one sentence, with the line."""
    try:
        return call()
    except UserError:
        raise
    except SyntaxError as why:
        raise UserError(f"--model {name}: line {why.lineno} of {path}: {why.msg}") from None
    except Exception as why:
        frames = traceback.extract_tb(why.__traceback__)
        lines = [frame.lineno for frame in frames if Path(frame.filename) == path]
        where = f"line {lines[-1]} of {path}" if lines else str(path)
        reason = " ".join(str(why).split())[:200]
        raise UserError(f"--model {name}: {where}: {type(why).__name__}: {reason}") from why


def _defined_in(module: ModuleType, value: object) -> bool:
    return inspect.isfunction(value) and value.__module__ == module.__name__
