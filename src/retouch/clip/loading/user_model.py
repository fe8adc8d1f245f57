"""A model defined by the user: `FILE.py:FUNCTION`, a function that returns a `Clip`.

The file is executed like any script, so only a name that the user typed may get here. A name read
from a run or a delta must pass through `refuse_code` first, so that opening somebody's folder never
runs the code that it names.
"""

import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch

from retouch.clip.model import Clip
from retouch.errors import UserError
from retouch.process.user_code import call_user_code


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


def load_user_model(name: str, device: torch.device | str = "cpu") -> Clip:
    """Execute the file, call the function, and try what it returns, which must be a `Clip`.

    Args:
        name: `FILE.py:FUNCTION`.
        device: Where to put the model.
    """
    check_code(name)
    file, _, function_name = name.rpartition(":")
    path = Path(file).resolve()

    def make() -> Clip:
        module = _import_file(path)
        clip = _function(module, function_name, file)()
        if not isinstance(clip, Clip):
            raise UserError(
                f"{function_name}() returned a {type(clip).__name__}; it must return a "
                "retouch.Clip, such as "
                "retouch.DualEncoder(image_encoder, text_encoder, tokenize, preprocess)"
            )
        clip.name = name
        clip.model.eval()
        clip.to(device)
        _try_encoders(clip)
        return clip

    return call_user_code(f"model {name}", make, path)


def _function(module: ModuleType, name: str, file: str) -> Callable[[], object]:
    function: Callable[[], object] | None = getattr(module, name, None)
    if not callable(function):
        defined = [key for key, value in vars(module).items() if _defined_in(module, value)]
        listed = f"it defines {', '.join(defined)}" if defined else "it defines no function"
        raise UserError(f"there is no function {name} in {file}; {listed}")
    return function


def _try_encoders(clip: Clip) -> None:
    """Encode two images and two prompts, to find mistakes before the data is read."""
    height, width = clip.preprocess.size
    pixels = torch.zeros(2, height, width, 3, dtype=torch.uint8)
    with torch.no_grad():
        images = clip.image_features(pixels)
        texts = clip.text_features(clip.tokenize(["a photo of a cat.", "a dog"]))
    if images.shape != texts.shape or images.ndim != 2:
        shapes = f"{list(images.shape)} and {list(texts.shape)}"
        raise UserError(
            f"the features of two images and of two prompts have the shapes {shapes}; both must "
            "be [2, D], with one D"
        )


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


def _defined_in(module: ModuleType, value: object) -> bool:
    return inspect.isfunction(value) and value.__module__ == module.__name__
