"""What ranks need is imported before they are forked, or each would import it anew."""

import importlib

import pytest
from tiny import tiny_clip


@pytest.fixture(autouse=True, scope="session")
def _imported_before_forking() -> None:
    tiny_clip()  # transformers imports a model's code when it is first used
    for name in (
        "retouch.cli.learn.command",
        "retouch.cli.evaluate.command",
        "retouch.report.figures",
    ):
        importlib.import_module(name)
