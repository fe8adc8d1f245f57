"""Runs that several tests compare with or copy; each is taught once per process."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from continued_runs import march
from runs import teach
from tiny import tiny_folder

WholeRun = Callable[[str], tuple[Path, str]]


@pytest.fixture(scope="session")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> WholeRun:
    """The folder and the final fingerprint of `runs.teach`, uninterrupted, by recipe."""
    runs: dict[str, tuple[Path, str]] = {}

    def run_of(name: str) -> tuple[Path, str]:
        if name not in runs:
            folder = tmp_path_factory.mktemp("whole") / name
            runs[name] = folder, teach(folder, name)[1]
        return runs[name]

    return run_of


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model."""
    return tiny_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def taught_in_march(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `continued_runs.march`, which no test may change."""
    folder = tmp_path_factory.mktemp("taught") / "march"
    march(model, folder)
    return folder


@pytest.fixture
def march_folder(taught_in_march: Path, tmp_path: Path) -> Path:
    """A copy of that folder."""
    return shutil.copytree(taught_in_march, tmp_path / "march")
