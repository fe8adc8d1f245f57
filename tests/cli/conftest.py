"""Fixtures that the tests of several commands share."""

from pathlib import Path

import pytest
from image_folders import to_folder
from runs import CONTROL, make_run
from tiny import images


@pytest.fixture(autouse=True)
def _undrawn_plots(undrawn_plots: None) -> None:
    """To draw the page of a short run takes longer than the run. Fixtures of a module draw it."""


@pytest.fixture(scope="session")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, its model, photos to test both with, and a control set.

    Do not change what it holds.
    """
    home = tmp_path_factory.mktemp("evaluated")
    make_run(home)
    to_folder(images("test", 6, 4), home / "photos" / "test")
    to_folder(images("train", 6, 2), home / "photos" / "train")
    to_folder(CONTROL, home / "control")
    return home
