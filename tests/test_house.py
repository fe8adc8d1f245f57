"""The structure of the package: rooms import only from rooms above, and the checks pass."""

import ast
import subprocess
import sys
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import pytest

import retouch

PACKAGE = Path(retouch.__file__).parent
ROOT = Path(__file__).resolve().parents[1]
ROOMS = [
    "version",
    "errors",
    "printable",
    "plural",
    "random_streams",
    "files",
    "output_paths",
    "checksummed",
    "file_lock",
    "distributed",
    "sparse",
    "clip",
    "data",
    "methods",
    "evaluate",
    "train",
    "analysis",
    "report",
    "export",
    "builtin",
    "bench",
    "cli",
]


def imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        found |= {name.split(".")[1] for name in names if name.startswith("retouch.")}
    return found


def test_a_room_imports_only_from_rooms_above_it():
    for file in PACKAGE.rglob("*.py"):
        room = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if room.startswith("__"):
            continue
        below = {other for other in imports(file) if ROOMS.index(other) > ROOMS.index(room)}
        assert not below, f"{file.relative_to(PACKAGE)} imports from {below}"


def test_sparse_knows_nothing_of_clip_and_the_loop_of_no_method():
    for file in (PACKAGE / "sparse").glob("*.py"):
        assert "transformers" not in imports_of_any(file)
    for file in (PACKAGE / "train").glob("*.py"):
        text = file.read_text()
        assert not [name for name in retouch.RECIPES if f'== "{name}"' in text]


def imports_of_any(file: Path) -> set[str]:
    nodes = ast.walk(ast.parse(file.read_text()))
    return {
        name.split(".")[0]
        for node in nodes
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }


def test_no_module_is_called_after_nothing():
    vague = {"utils", "util", "core", "base", "manager", "helpers", "common", "misc"}
    assert not vague & {path.stem for path in PACKAGE.rglob("*")}


def test_everything_promised_can_be_imported():
    for name in retouch.__all__:
        assert getattr(retouch, name) is not None
    with pytest.raises(AttributeError, match="no 'nonsense'"):
        _ = retouch.nonsense


@pytest.mark.parametrize(
    "name",
    [
        "py.typed",
        "builtin/demo.yaml",
        "builtin/model/model.safetensors",
        "builtin/pictures.tar",
        "report/page.html.j2",
    ],
)
def test_the_data_files_are_there(name: str):
    assert files("retouch").joinpath(name).is_file()


@pytest.mark.parametrize("command", ["ruff check .", "ruff format --check .", "mypy"])
def test_the_checks_of_make_check(command: str):
    done = subprocess.run(
        [sys.executable, "-m", *command.split()], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"$(BIN)/{command}" in (ROOT / "Makefile").read_text()


def test_the_picture_of_the_rooms_shows_every_import():
    """Each room is in the diagram of docs/architecture.md, and each import follows its arrows."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    diagram = text.split("```mermaid\n")[1].split("```")[0]
    chains = [line.split(" --> ") for line in diagram.splitlines() if " --> " in line]
    above: dict[str, set[str]] = {}
    for upper, lower in sorted(
        (pair for chain in chains for pair in pairwise(map(str.strip, chain))),
        key=lambda pair: ROOMS.index(pair[0]),
    ):
        assert ROOMS.index(upper) < ROOMS.index(lower), f"{upper} --> {lower}"
        above.setdefault(lower, set()).update({upper}, above.get(upper, set()))
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert set(above) | {"distributed"} == rooms
    for room in rooms:
        used = set().union(*map(imports, (PACKAGE / room).rglob("*.py"))) & rooms - {room}
        assert used <= above.get(room, set()), f"{room} uses {used - above.get(room, set())}"
