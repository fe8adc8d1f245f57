"""The documentation site builds without a warning, and the Makefile builds it the same way."""

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import retouch

pytest.importorskip("mkdocs")
pytest.importorskip("mkdocstrings")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]


def test_make_docs_builds_strictly():
    shown = subprocess.run(["make", "-n", "docs"], capture_output=True, text=True, cwd=ROOT).stdout
    assert "mkdocs build --strict" in shown


def test_the_site_builds_without_a_warning(tmp_path: Path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stderr
    for page in (tmp_path / "docs" / "api").glob("*/index.html"):
        name = page.parent.name
        package = import_module(f"retouch.{name}") if name != "retouch" else retouch
        shown = set(re.findall(r'id="retouch\.(?:\w+\.)*(\w+)"', page.read_text()))
        assert not set(package.__all__) - shown, name
    assert (tmp_path / "index.html").exists()
    for page in tmp_path.rglob("*.html"):
        assert "fonts.googleapis" not in page.read_text()
