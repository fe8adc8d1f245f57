"""What is logged as a warning becomes a note in the results."""

import logging
from pathlib import Path

import pytest
from runs import QUICK, method
from tiny import images, tiny_clip

import retouch
from retouch.data import Stream
from retouch.evaluate import Results


@pytest.mark.slow
def test_warnings_become_notes(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    stream = Stream.split(images("train", 4, 6), images("test", 4, 2), tasks=[3, 1])
    with caplog.at_level(logging.WARNING, "retouch"):
        results = retouch.teach(tiny_clip(), stream, method(), out=tmp_path, settings=QUICK)
    assert "task 2 has a single class" in caplog.text
    assert any("task 2 has a single class" in note for note in results.notes)
    assert Results.read(tmp_path).notes == results.notes
