"""Nothing of the trainer is imported when images are learned."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import retouch
from retouch.cli import app
from retouch.cli.learn import command
retouch.teach, retouch.load, retouch.continue_run, retouch.open_run
assert not [name for name in sys.modules if name.startswith("retouch.trainer")]
import retouch.trainer
assert "transformers" not in sys.modules
assert retouch.trainer.__all__ == sorted(retouch.trainer._MODULES)
"""


@pytest.mark.slow
def test_images_are_learned_without_the_trainer():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
