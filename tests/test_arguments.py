"""Plainly wrong arguments of the public API: each is a sentence that names the argument."""

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import pytest
import torch
from networks import learn, network
from test_api_docs import arguments, callables
from torch import Tensor, nn
from typing_extensions import TypeAliasType

import retouch
from retouch import sparse
from retouch.arguments import check_arguments
from retouch.errors import UserError
from retouch.sparse import (
    AdapterFolder,
    Addition,
    Delta,
    Selection,
    Snapshot,
    SparseAdamW,
    SparseIndex,
    addition,
    join,
    linear_layers,
    neuron_axis,
    select,
    total_stats,
)

CLASSES = (Delta, Selection, Snapshot, SparseAdamW, SparseIndex, Addition, AdapterFolder)
OTHERS = {
    "Bench": retouch.Bench,
    "Results.read": retouch.Results.read,
    "Results.write": retouch.Results.write,
    "Splits": retouch.Splits,
    "Splits.train_and_test": retouch.Splits.train_and_test,
    "Stream.join": retouch.Stream.join,
    "Stream.split": retouch.Stream.split,
}
NOT_CHECKED = {"SparseIndex.gather", "SparseIndex.scatter"}
"""Called in every step."""


def public_functions() -> dict[str, Callable[..., Any]]:
    """The functions of the API that have arguments, and what makes and uses its classes."""
    found: dict[str, Callable[..., Any]] = dict(OTHERS)
    for package in (retouch, sparse):
        for name in package.__all__:
            thing = getattr(package, name)
            if inspect.isfunction(thing):
                found[name] = thing
    for cls in CLASSES:
        methods = {label: f for label, f in callables(cls) if not label.endswith("__init__")}
        found |= {cls.__name__: cls, **methods}
    return {n: f for n, f in found.items() if arguments(f) and n not in NOT_CHECKED}


FUNCTIONS = public_functions()


def test_the_whole_api_is_here():
    assert len(FUNCTIONS) > 50
    for name in ("teach", "read_data", "select", "merge", "Delta.load", "SparseAdamW", "in_order"):
        assert name in FUNCTIONS


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_argument_of_another_type_is_named(name: str):
    """A plain object is of no type that any argument may have."""
    names = list(inspect.signature(FUNCTIONS[name]).parameters)
    given = {argument: object() for argument in names if argument != "more"}
    first = next(argument for argument in names if argument not in ("self", "cls"))
    with pytest.raises(UserError, match=f"^{first}(=<object| cannot be an object)"):
        FUNCTIONS[name](**given)


MODEL = network()
PICTURES = retouch.in_memory("x", ["a"], [0, 0], np.zeros((2, 2, 2, 3), np.uint8))
WEIGHT = {"0.weight": MODEL.get_parameter("0.weight")}


def selection(*positions: int, dtype: torch.dtype = torch.int64, name: str = "0.weight"):
    return Selection({name: SparseIndex((50, 30), torch.tensor(positions, dtype=dtype))})


def typed_model(dtype: torch.dtype) -> nn.Module:
    """A module with a buffer of this type."""
    module = nn.Module()
    module.register_buffer("x", torch.arange(6).to(dtype))
    return module


CASES: dict[str, tuple[Callable[[], object], str]] = {
    "join []": (lambda: join([]), "there are no deltas; give one or more"),
    "join None": (lambda: join(None), "deltas cannot be None; give a list of Delta objects"),
    "join [None]": (lambda: join([None]), r"deltas\[0\] cannot be None; give a Delta"),
    "in_order []": (lambda: sparse.in_order([]), "there are no deltas"),
    "in_order [3]": (lambda: sparse.in_order([3]), r"steps\[0\] cannot be 3; give deltas, or"),
    "load None": (lambda: Delta.load(None), "path cannot be None; give a path"),
    "load of nothing": (lambda: Delta.load("nowhere/x.safetensors"), "does not exist"),
    "apply to a dict": (lambda: learn(network()).apply({}), "model cannot be {}; give a torch"),
    "merge nothing": (lambda: sparse.merge(MODEL, []), "nothing to merge"),
    "merge a dict": (lambda: sparse.merge(MODEL, {"a": 1}), "deltas cannot be a dict"),
    "rate x": (lambda: select(WEIGHT, "x"), "rate cannot be 'x'; give a number"),
    "rate True": (lambda: select(WEIGHT, True), "rate cannot be True"),
    "rate 0": (lambda: select(WEIGHT, 0), "rate=0 is not a share"),
    "rate nan": (lambda: select(WEIGHT, float("nan")), "rate=nan is not a share"),
    "unit": (lambda: select(WEIGHT, unit="row"), "unit='row' is unknown; choose weight, neuron"),
    "no scores": (lambda: select(None), "scores cannot be None; give a dict of tensors by name"),
    "scores list": (lambda: select([torch.ones(3)]), "scores cannot be a list"),
    "score None": (lambda: select({"a": None}), r"scores\['a'\] cannot be None; give a tensor"),
    "axis": (
        lambda: select(WEIGHT, unit="neuron", axes={"0.weight": 2}),
        r"axes\['0.weight'\] cannot be 2: 0.weight has 2 dimensions",
    ),
    "complex scores": (
        lambda: select({"a": torch.ones(3, dtype=torch.complex64)}),
        "the scores of a cannot be complex64",
    ),
    "duplicate entries": (lambda: SparseAdamW(WEIGHT, selection(3, 3)), "of 0.weight .* each once"),
    "descending entries": (lambda: SparseAdamW(WEIGHT, selection(4, 3)), "in ascending order"),
    "entries below": (lambda: SparseAdamW(WEIGHT, selection(-1, 3)), "from 0 to 1,499"),
    "entries above": (lambda: SparseAdamW(WEIGHT, selection(3, 1500)), "from 0 to 1,499"),
    "float entries": (
        lambda: SparseAdamW(WEIGHT, selection(3, dtype=torch.float32)),
        "positions of 0.weight are not valid: they are int64",
    ),
    "unknown entries": (
        lambda: SparseAdamW(WEIGHT, selection(3, name="nope")),
        "entries of nope, which is not among the parameters",
    ),
    "another shape": (
        lambda: SparseAdamW({"0.weight": nn.Parameter(torch.ones(3, 4))}, selection(3)),
        "for 0.weight of shape 50×30, but it is 3×4",
    ),
    "no entries": (lambda: SparseAdamW(WEIGHT, Selection()), "the selection is empty"),
    "integer weights": (
        lambda: SparseAdamW(
            {"a": nn.Parameter(torch.ones(3).int(), requires_grad=False)},
            Selection({"a": SparseIndex((3,))}),
        ),
        "a is int32, and only floating-point weights",
    ),
    "learning rate x": (lambda: SparseAdamW(WEIGHT, selection(3), "x"), "lr cannot be 'x'"),
    "one beta": (
        lambda: SparseAdamW(WEIGHT, selection(3), betas=(0.9,)),
        "betas .* give 2 numbers",
    ),
    "snapshot, unknown": (lambda: Snapshot(MODEL, selection(3, name="nope")), "entries of nope"),
    "snapshot, outside": (lambda: Snapshot(MODEL, selection(1500)), "from 0 to 1,499"),
    "snapshot, complex": (
        lambda: Snapshot(typed_model(torch.complex128), Selection({"x": SparseIndex((6,))})),
        "x is complex128, and a delta holds entries of up to 8 bytes",
    ),
    "difference, complex": (
        lambda: sparse.difference(*[typed_model(torch.complex128)] * 2),
        "x is complex128",
    ),
    "no parameter": (lambda: neuron_axis(MODEL, "nope.weight"), "has no parameter 'nope.weight'"),
    "no layer": (lambda: linear_layers(MODEL, ["0.nope"]), "has no parameter '0.nope'"),
    "names as one": (lambda: linear_layers(MODEL, "0.weight"), "names cannot be '0.weight'"),
    "no stats": (lambda: total_stats([]), "there are no changes to sum"),
    "too short": (
        lambda: addition(torch.zeros(3), torch.ones(3)).padded(2),
        "count=2 is less than the 3",
    ),
    "two shapes": (lambda: addition(torch.zeros(3), torch.ones(4)), "of one shape"),
    "data None": (lambda: retouch.read_data(None), "source cannot be None; give a path, or"),
    "pairs None": (lambda: retouch.read_pairs(None), "source cannot be None"),
    "model 7": (lambda: retouch.load(7), "name cannot be 7; give a folder, a hub id or 'builtin'"),
    "device 7": (lambda: retouch.load("builtin", device=7), "device cannot be 7"),
    "run None": (lambda: retouch.open_run(None), "folder cannot be None"),
    "suite None": (lambda: retouch.load_suite(None), "name cannot be None; give the name of a"),
    "recipe None": (lambda: retouch.recipe(None), "name cannot be None; give a string"),
    "changes": (lambda: retouch.recipe("spu", ["rate"]), "changes cannot be a list; give a dict"),
    "report": (lambda: retouch.write_report("x", "run"), "runs cannot be 'run'; give a list of"),
    "arrays": (
        lambda: retouch.in_memory("x", ["a"], [0], [[0]]),
        "arrays cannot be a list; give an array",
    ),
    "classes": (
        lambda: retouch.in_memory("x", "cat", [0], np.zeros((1, 2, 2, 3), np.uint8)),
        "classes cannot be 'cat'; give a list of strings",
    ),
    "images": (lambda: retouch.cached("photos", None), "images cannot be 'photos'"),
    "pixels": (
        lambda: retouch.in_memory("x", ["a"], [0], np.zeros((1, 2, 2, 3), np.float32)),
        r"x: arrays must be 8-bit RGB pixels, .* these are float32 \[1, 2, 2, 3\]",
    ),
    "labels": (
        lambda: retouch.in_memory("x", ["a"], np.array([0.7]), np.zeros((1, 2, 2, 3), np.uint8)),
        "x: labels are a list of whole numbers",
    ),
    "a file as a run": (lambda: retouch.open_run(__file__), re.escape(__file__)),
    "a file as results": (lambda: retouch.Results.read(__file__), re.escape(__file__)),
    "no path": (lambda: Delta.load("a\0b"), r"path cannot be 'a\\x00b'; give a path"),
    "a path too long": (lambda: retouch.read_data("x" * 300), "source cannot be 'xxx"),
    "seed": (lambda: retouch.Splits(PICTURES).train_and_test(seed=-1), "seed=-1 is not a seed"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_mistake_is_named(case: str):
    function, complaint = CASES[case]
    with pytest.raises(UserError, match=complaint):
        function()


@pytest.mark.parametrize("place", ["nowhere/x.safetensors", "file/x.safetensors", "folder"])
def test_a_delta_is_saved_into_a_folder_that_exists(place: str, tmp_path: Path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=re.escape(str(tmp_path / place))):
        learn(network()).save(tmp_path / place)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder"]


TYPES = [torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32, torch.uint64]
TYPES += [torch.complex64, torch.bool, torch.int8, torch.bfloat16, torch.float64]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_delta_of_any_type(dtype: torch.dtype, tmp_path: Path):
    """Entries are bits: whatever torch cannot compute with can still be stored and undone."""
    old, new = typed_model(dtype), typed_model(dtype)
    new.x.copy_(torch.tensor([1, 1, 0, 3, 9, 5]).to(dtype))
    entries = Selection({"x": SparseIndex((6,), torch.tensor([0, 2, 4]))})
    model = typed_model(dtype)
    snapshot = Snapshot(model, entries)
    model.x.copy_(new.x)
    for delta in (snapshot.delta(), sparse.difference(old, new)):
        delta.save(tmp_path / "x.safetensors")
        changed = typed_model(dtype)
        Delta.load(tmp_path / "x.safetensors").apply(changed)
        assert sparse.fingerprint(changed) == sparse.fingerprint(new)
        delta.undo(changed)
        assert sparse.fingerprint(changed) == sparse.fingerprint(old)
        if dtype.is_complex:
            with pytest.raises(UserError, match="changes x, which is complex"):
                sparse.merge(old, [delta])
        else:
            assert sparse.merge(old, [delta]).after == delta.after


@check_arguments(path="read it first")
def example(
    names: Sequence[str] = (),
    path: str | Path = "",
    tensors: Mapping[str, Tensor] | None = None,
    rate: float = 1,
    tasks: int | Sequence[int] = 1,
    how: Literal["sum", "mean"] = "sum",
    betas: tuple[float, float] = (0.9, 0.999),
    progress: Callable[[int], int] = len,
    files: Iterable[str | Path] = (),
    kept: Collection[str] = (),
    metadata: dict[str, Any] | None = None,
    overwrite: bool = False,
    **more: Any,
) -> str:
    """What a public function looks like."""
    return "called"


@pytest.mark.parametrize(
    "given",
    [
        {
            "names": ["a"],
            "path": Path("x"),
            "rate": 2,
            "tasks": [1, 2],
            "metadata": {"a": object()},
        },
        {"names": np.array(["a"]), "rate": np.float32(1), "tasks": np.array([1, 2])},
        {
            "tensors": nn.ParameterDict({"a": torch.zeros(2)}),
            "betas": [0.9, 1],
            "tasks": np.int8(2),
        },
        {"files": (name for name in "ab"), "kept": {"a", "b"}, "overwrite": np.bool_(True)},
        {"kept": {"a": 1}.keys(), "more": 3, "other": None},
    ],
)
def test_what_fits_is_passed_on(given: dict[str, Any]):
    assert example(**given) == "called"


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"names": "cat"}, "names cannot be 'cat'; give a list of strings"),
        ({"names": ["a", 1]}, r"names\[1\] cannot be 1; give a string"),
        ({"names": {"a": 1}}, "names cannot be a dict"),
        ({"path": None}, "path cannot be None; read it first"),
        ({"tensors": []}, r"tensors cannot be \[\]; give a dict of tensors by name or None"),
        ({"tensors": {"a": 1}}, r"tensors\['a'\] cannot be 1; give a tensor"),
        ({"tensors": {1: torch.zeros(1)}}, "a name in tensors cannot be 1; give a string"),
        ({"rate": "0.1"}, "rate cannot be '0.1'; give a number"),
        ({"rate": torch.tensor(0.1)}, "rate cannot be a Tensor"),
        ({"tasks": 1.5}, "tasks cannot be 1.5; give a whole number or a list of whole numbers"),
        ({"tasks": [1, "2"]}, r"tasks\[1\] cannot be '2'; give a whole number"),
        ({"tasks": np.array(1)}, "tasks cannot be a ndarray"),
        ({"how": "max"}, "how='max' is unknown; choose sum, mean"),
        ({"how": ["sum"]}, r"how=\['sum'\] is unknown"),
        ({"how": np.array(["sum", "mean"])}, "how=.* is unknown"),
        ({"betas": (0.9, 0.99, 1)}, "betas cannot be a tuple; give 2 numbers"),
        ({"betas": (0.9, None)}, r"betas\[1\] cannot be None"),
        ({"progress": 3}, "progress cannot be 3; give a function"),
        ({"files": "abc"}, "files cannot be 'abc'; give a list of paths"),
        ({"files": ["a", 3]}, r"files\[1\] cannot be 3; give a path"),
        ({"kept": "a"}, "kept cannot be 'a'"),
        ({"kept": (name for name in "ab")}, "kept cannot be a generator"),
        ({"files": torch.tensor(1)}, "files cannot be a Tensor"),
        ({"metadata": []}, r"metadata cannot be \[\]; give a dict or None"),
        ({"overwrite": 1}, "overwrite cannot be 1; give True or False"),
        ({"path": nn.Linear}, "path cannot be the class Linear"),
    ],
)
def test_what_does_not_fit_is_refused(given: dict[str, Any], complaint: str):
    with pytest.raises(UserError, match=complaint):
        example(**given)


def test_positional_arguments_are_named():
    with pytest.raises(UserError, match="path cannot be 3"):
        example(["a"], 3)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'name'"):
        neuron_axis(MODEL)  # Python's own sentence


def test_the_docstring_and_the_signature_stay():
    assert example.__doc__ == "What a public function looks like."
    assert list(inspect.signature(example).parameters)[:2] == ["names", "path"]


T = TypeVar("T", bound=np.generic)
Pixels = TypeAliasType("Pixels", np.ndarray[Any, np.dtype[T]], type_params=(T,))
Name = TypeAliasType("Name", str)


def test_a_type_may_have_a_name():
    """numpy names its types with `type`, where Python has it."""

    @check_arguments()
    def function(pixels: Pixels[np.uint8], name: Name | None = None) -> None: ...

    function(np.zeros(3, np.uint8), "a")
    with pytest.raises(UserError, match="pixels cannot be 3"):
        function(3)
    with pytest.raises(UserError, match="name cannot be 3"):
        function(np.zeros(3, np.uint8), 3)
