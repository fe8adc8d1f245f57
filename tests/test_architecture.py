"""The structure of the package: imports, sizes, names, and the checks of `make check`."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import pytest

import retouch

PACKAGE = Path(retouch.__file__).parent
ROOT = Path(__file__).resolve().parents[1]
MODULES = sorted(PACKAGE.rglob("*.py"))
SUBPACKAGES = [
    "version",
    "errors",
    "text",
    "arguments",
    "random_streams",
    "files",
    "process",
    "torchvision_compat",
    "distributed",
    "sparse",
    "trainer",
    "clip",
    "data",
    "methods",
    "evaluate",
    "train",
    "plotting",
    "analysis",
    "report",
    "export",
    "builtin",
    "bench",
    "cli",
]
USED_BY_ALL = {"text", "files", "process"}
MAX_FUNCTION_LINES = 60
MAX_MODULE_LINES = 600
MAX_ENTRIES = 18
LISTS = {"data/benchmarks"}
"""Folders with a file for each data set."""
VAGUE_NAMES = {"utils", "util", "core", "base", "manager", "helpers", "common", "misc"}
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")


def short(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


def subpackage_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def module_name(file: Path) -> str:
    parts = ["retouch", *file.relative_to(PACKAGE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def runtime_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below this one, without those in `if TYPE_CHECKING:`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            continue
        yield child
        yield from runtime_nodes(child)


def imported_names(file: Path, *, types: bool = True) -> set[str]:
    """Everything that a module imports, in functions and for `types`, too: `a.b`, or `a.b.name`."""
    names: set[str] = set()
    tree = tree_of(file)
    for node in ast.walk(tree) if types else runtime_nodes(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{short(file)} has a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def imported_subpackages(file: Path) -> set[str]:
    """The subpackages that a module imports from, also for type checking alone."""
    subpackages = set()
    for node in ast.walk(tree_of(file)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        subpackages |= {name.split(".")[1] for name in names if name.startswith("retouch.")}
    return subpackages & set(SUBPACKAGES)


def import_graph() -> dict[str, set[str]]:
    """The modules of the package that each module imports.

    The implicit import of a module's parent packages does not count: a subpackage's `__init__` may
    import its modules. A module that imports its own subpackage's `__init__` makes a cycle.
    """
    modules = {module_name(file): file for file in MODULES}
    graph = {}
    for module, file in modules.items():
        names = {name for name in imported_names(file) if name.startswith("retouch.")}
        owners = {name if name in modules else name.rpartition(".")[0] for name in names}
        graph[module] = owners & modules.keys() - {module}
    return graph


def shortest_cycle(graph: dict[str, set[str]], start: str) -> list[str]:
    """The shortest path from a node back to itself; empty if there is none."""
    paths = [[start]]
    visited = {start}
    while paths:
        longer = []
        for path in paths:
            for following in sorted(graph[path[-1]]):
                if following == start:
                    return [*path, start]
                if following not in visited:
                    visited.add(following)
                    longer.append([*path, following])
        paths = longer
    return []


def test_every_module_belongs_to_a_subpackage():
    assert {subpackage_of(file) for file in MODULES} - {"__init__", "__main__"} <= set(SUBPACKAGES)


@pytest.mark.slow
def test_a_subpackage_imports_only_from_those_above_it():
    wrong = [
        f"{short(file)} imports from {subpackage}"
        for file in MODULES
        if not subpackage_of(file).startswith("__")
        for subpackage in sorted(imported_subpackages(file))
        if SUBPACKAGES.index(subpackage) > SUBPACKAGES.index(subpackage_of(file))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_no_import_cycles():
    graph = import_graph()
    cycles = {
        frozenset(cycle): " → ".join(cycle)
        for module in sorted(graph)
        if (cycle := shortest_cycle(graph, module))
    }
    assert not cycles, "\n".join(sorted(cycles.values()))
    # `retouch` itself imports all of them on first use, so it must not be imported inside them.
    assert not [module for module, imported in graph.items() if "retouch" in imported]


@pytest.mark.slow
def test_the_search_for_cycles_finds_one():
    graph = {"a": {"b", "d"}, "b": {"c"}, "c": {"a"}, "d": set[str]()}
    assert shortest_cycle(graph, "a") == ["a", "b", "c", "a"]
    assert not shortest_cycle(graph, "d")
    assert "retouch.sparse.select" in import_graph()["retouch.sparse.optim"]


def test_sparse_knows_nothing_of_clip():
    for file in (PACKAGE / "sparse").rglob("*.py"):
        libraries = {name.split(".")[0] for name in imported_names(file)}
        assert not libraries & {"transformers", "open_clip", "PIL"}, short(file)


def test_python_processes_are_started_in_one_way():
    """By `child_process`, so that none imports modules from the current folder."""
    libraries = {"subprocess", "multiprocessing", "pty"}
    starters = {
        short(file)
        for file in MODULES
        if {name.split(".")[0] for name in imported_names(file, types=False)} & libraries
    }
    assert starters == {"process/child_process.py", "bench/engines/processes.py"}
    assert "safe_path" in (PACKAGE / "bench" / "engines" / "processes.py").read_text()
    calls = re.compile(r"\bos\.(system|popen|fork|exec|spawn|posix_spawn)")
    assert not [short(file) for file in MODULES if calls.search(file.read_text())]


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of a function's body, without its docstring."""
    assert function.end_lineno is not None
    first = function.body[0]
    if ast.get_docstring(function) is not None:
        assert first.end_lineno is not None
        return function.end_lineno - first.end_lineno
    return function.end_lineno - first.lineno + 1


@pytest.mark.slow
def test_no_function_is_too_long():
    too_long = [
        f"{short(file)}:{node.lineno} {node.name} has {code_lines(node)} lines"
        for file in MODULES
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and code_lines(node) > MAX_FUNCTION_LINES
    ]
    assert not too_long, "\n".join(too_long)


def test_no_module_is_too_long():
    lengths = {short(file): len(file.read_text().splitlines()) for file in MODULES}
    too_long = {name: length for name, length in lengths.items() if length > MAX_MODULE_LINES}
    assert not too_long


def test_no_folder_has_too_many_entries():
    """A newcomer finds each thing in one guess. The package's own folder holds the subpackages."""
    folders = {file.parent for file in MODULES} - {PACKAGE}
    hidden = {"__init__.py", "__pycache__"}
    sizes = {
        short(folder): len({path.name for path in folder.iterdir()} - hidden) for folder in folders
    }
    assert not {folder for folder, size in sizes.items() if size > MAX_ENTRIES} - LISTS


def compared_strings(node: ast.AST) -> set[str]:
    """The string literals that something is compared with: `==`, `!=`, `in`, `not in`, `match`."""
    if isinstance(node, ast.MatchValue):
        operands = [node.value]
    elif isinstance(node, ast.Compare):
        operands = [node.left, *node.comparators]
    else:
        return set()
    literals = [
        item
        for operand in operands
        for item in (
            operand.elts if isinstance(operand, ast.Tuple | ast.List | ast.Set) else [operand]
        )
    ]
    return {
        item.value
        for item in literals
        if isinstance(item, ast.Constant) and isinstance(item.value, str)
    }


@pytest.mark.slow
def test_no_method_is_recognized_by_its_name_outside_methods():
    comparisons = [
        f"{short(file)}:{node.lineno} {ast.unparse(node)}"
        for file in MODULES
        if subpackage_of(file) != "methods"
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.Compare | ast.MatchValue)
        and compared_strings(node) & retouch.RECIPES.keys()
    ]
    assert not comparisons, "\n".join(comparisons)


def messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """All string literals with their lines, f-strings' parts too, except docstrings."""
    docstrings = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in docstrings:
            yield node.lineno, node.value


@pytest.mark.slow
def test_the_library_names_no_option_of_the_command_line():
    named = [
        f"{short(file)}:{line} {option}"
        for file in MODULES
        if subpackage_of(file) != "cli"
        for line, text in messages(tree_of(file))
        for option in OPTION.findall(text)
    ]
    assert not named, "\n".join(named)


def test_no_module_has_a_vague_name():
    assert not VAGUE_NAMES & {path.stem for path in PACKAGE.rglob("*")}


def test_every_public_name_can_be_imported():
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
        "report/templates/page.html.j2",
    ],
)
def test_data_files_are_packaged(name: str):
    assert files("retouch").joinpath(name).is_file()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["ruff check .", "ruff format --check .", "mypy"])
def test_make_check(command: str):
    process = subprocess.run(
        [sys.executable, "-m", *command.split()], capture_output=True, text=True, cwd=ROOT
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert f"$(BIN)/{command}" in (ROOT / "Makefile").read_text()


@pytest.mark.slow
def test_the_diagram_of_subpackages_shows_every_import():
    """Each is in the diagram of docs/architecture.md, and each import follows its arrows."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    diagram = text.split("```mermaid\n")[1].split("```")[0]
    chains = [line.split(" --> ") for line in diagram.splitlines() if " --> " in line]
    above: dict[str, set[str]] = {}
    for upper, lower in sorted(
        (pair for chain in chains for pair in pairwise(map(str.strip, chain))),
        key=lambda pair: SUBPACKAGES.index(pair[0]),
    ):
        assert SUBPACKAGES.index(upper) < SUBPACKAGES.index(lower), f"{upper} --> {lower}"
        above.setdefault(lower, set()).update({upper}, above.get(upper, set()))
    subpackages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")} - USED_BY_ALL
    assert set(above) | {"distributed", "plotting"} == subpackages
    for subpackage in subpackages:
        used = set().union(
            *map(imported_subpackages, (PACKAGE / subpackage).rglob("*.py"))
        ) & subpackages - {subpackage}
        assert used <= above.get(subpackage, set()), (
            f"{subpackage} uses {used - above.get(subpackage, set())}"
        )
