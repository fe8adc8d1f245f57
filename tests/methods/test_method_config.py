"""A method in `config.yaml`: each part with its class, so that exactly that method is rebuilt."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import Field

from retouch.errors import UserError
from retouch.files import checksummed
from retouch.methods import RECIPES, AfterTask, Method, Regularizer, recipe
from retouch.methods.after_task.bounded_drop import BoundedDrop, with_max_drop
from retouch.methods.after_task.merging import Interpolate, ShorterStep
from retouch.methods.method import PARTS
from retouch.methods.method_config import method_config, read_method
from retouch.methods.part_classes import known_classes, part_name
from retouch.methods.parts import Part
from retouch.methods.updates.full_finetune import FullFinetune

FILE = "run/config.yaml"
CHANGES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "without parts": {"regularizer": "none", "after_task": "none", "replay": "none"},
    "other parts": {"update": "FullFinetune", "after_task": "Interpolate", "regularizer": "MAS"},
    "settings": {"loss": "cross-entropy", "lr": 1e-3, "drop_last": True, "store_images": False},
    "name": {"name": "x", "summary": "another"},
}


class Pull(Regularizer):
    """A part of one's own."""

    copies: ClassVar[int] = 2

    weight: float = 1.0


class Chain(Regularizer):
    """Parts inside a part, in a list and in a dictionary."""

    parts: tuple[Regularizer, ...] = ()
    label: str = Field("not stored", exclude=True)
    by_name: dict[str, Regularizer] = Field(default_factory=dict)


class Renamed(Method):
    """A subclass of the recipe itself."""

    more: int = 1


def classes(method: Method) -> list[type]:
    return [type(inner) for part in PARTS for inner in getattr(method, part).walk()]


class Stored(checksummed.Document):
    method: dict[str, Any]


def stored(method: Method, folder: Path) -> Any:
    """As it comes back from a file."""
    checksummed.write_yaml(folder / "config.yaml", {"method": method_config(method)})
    return checksummed.read(folder / "config.yaml", Stored, "").method


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("name", RECIPES)
def test_exactly_the_method_that_was_stored(
    name: str, bounded: bool, changes: dict[str, Any], tmp_path: Path
):
    method = recipe(name, changes)
    method = with_max_drop(method, 0.5) if bounded else method
    rebuilt = read_method(stored(method, tmp_path), FILE)
    assert classes(rebuilt) == classes(method)
    assert rebuilt.model_dump() == method.model_dump()


def test_parts_of_the_same_settings_are_told_apart():
    half, between = (Method(name="m", after_task=part) for part in (ShorterStep(), Interpolate()))
    assert method_config(half) != method_config(between)
    for method in (half, between):
        inner = with_max_drop(method, 1).after_task
        assert isinstance(inner, BoundedDrop)
        rebuilt = read_method(method_config(with_max_drop(method, 1)), FILE).after_task
        assert isinstance(rebuilt, BoundedDrop)
        assert type(rebuilt.after) is type(inner.after) is type(method.after_task)


def test_parts_of_ones_own(tmp_path: Path):
    parts = Chain(parts=(Pull(weight=2), Regularizer()), by_name={"a": Pull(weight=3)})
    assert Method(name="mine", regularizer=parts).copies == 4
    for method in (Method(name="mine", regularizer=parts), Renamed(name="mine", more=2)):
        assert read_method(stored(method, tmp_path), FILE) == method
    assert part_name(Pull) == f"{__name__}.Pull"


def test_the_class_that_was_defined_last_counts():
    """As where a cell of a notebook is run again."""

    def define() -> type[Regularizer]:
        class Again(Regularizer):
            pass

        return Again

    first, last = define(), define()
    rebuilt = read_method(method_config(Method(name="m", regularizer=first())), FILE)
    assert type(rebuilt.regularizer) is last


def test_every_part_of_the_package_has_a_name_of_its_own():
    own = [kind for kind in known_classes(Part).values() if kind.__module__.startswith("retouch.")]
    assert {part_name(kind) for kind in own} == {kind.__name__ for kind in own}
    assert {"Interpolate", "AfterTask", "FeatureReplay"} <= set(known_classes(Part))
    assert "WeightMerging" not in known_classes(Part), "cannot be made"


def set_to(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(stored: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        for parent in parents:
            stored = stored[parent]
        if value is None:
            del stored[last]
        else:
            stored[last] = value

    return change


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("name", None, r"method\.name is missing"),
        ("update", None, r"method\.update is missing"),
        ("update", "SelectiveUpdate", r"method\.update is 'SelectiveUpdate', not a part"),
        ("update.class", None, r"method\.update\.class is missing"),
        ("update.class", 3, r"method\.update\.class is 3, not the name of a class"),
        ("update.class", "Interpolate", r"method\.update\.alpha is missing"),
        ("regularizer", {"class": "Replay"}, r"method\.regularizer=Replay\(\).*of Regularizer"),
        ("update.class", "os.system", r"os\.system, which is unknown here; install the package"),
        ("update.class", "WeightMerging", "WeightMerging, which is unknown here"),
        ("update.rate", None, r"method\.update\.rate is missing"),
        ("update.rate", "x", r"method\.update\.rate='x'"),
        ("update.rate", "0.1", r"method\.update\.rate"),
        ("update.rat", 0.1, r"method\.update\.rat: there is no such entry"),
        ("after_task.after.class", "Gone", r"after_task\.after of spu\+ is Gone, which is unknown"),
        ("after_task.after.alpha", 3, r"method\.after_task\.after\.alpha=3"),
        ("after_task.after", [1], r"method\.after_task\.after"),
        ("loss", "mine", r"method\.loss='mine'"),
        ("store_images", "no", r"method\.store_images"),
        ("more", 1, r"method\.more: there is no such entry"),
        ("class", "Pull", r"method.*Pull"),
    ],
)
def test_what_is_no_method_is_a_sentence(path: str, value: Any, problem: str):
    content = method_config(with_max_drop(recipe("spu+"), 1))
    set_to(path, value)(content)
    with pytest.raises(UserError, match=rf"^run/config\.yaml.*{problem}"):
        read_method(content, FILE)


@pytest.mark.parametrize("content", [None, 3, [], "spu", {}])
def test_a_method_that_is_no_mapping(content: Any):
    with pytest.raises(UserError, match=r"^run/config\.yaml is damaged.*: method"):
        read_method(content, FILE)


def test_a_method_that_is_nested_too_deeply():
    content = method_config(with_max_drop(recipe("spu"), 1))
    bound = content["after_task"]
    for _ in range(5000):
        content["after_task"] = {**bound, "after": content["after_task"]}
    with pytest.raises(UserError, match=r"^run/config\.yaml.*method is nested too deeply"):
        read_method(content, FILE)


def test_no_module_is_imported_for_a_name_in_a_file(tmp_path: Path, monkeypatch: Any):
    (tmp_path / "hostile_module.py").write_text("raise SystemExit('it was run')")
    monkeypatch.syspath_prepend(str(tmp_path))
    content = method_config(recipe("spu"))
    content["update"]["class"] = "hostile_module.Update"
    with pytest.raises(UserError, match=r"hostile_module\.Update, which is unknown"):
        read_method(content, FILE)
    assert "hostile_module" not in sys.modules


def test_a_setting_that_cannot_be_stored_is_named():
    class Odd(AfterTask):
        how: Any = None

    with pytest.raises(UserError, match="the after_task of mine has a setting that cannot be"):
        method_config(Method(name="mine", update=FullFinetune(), after_task=Odd(how=print)))
