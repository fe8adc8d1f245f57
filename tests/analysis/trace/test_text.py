"""The files of a trace."""

import json
from pathlib import Path

import pytest

import retouch
from retouch.analysis.trace.causal_trace import causal_trace
from retouch.analysis.trace.effects import TraceSettings
from retouch.analysis.trace.text import write_trace
from retouch.builtin.boxes import boxed_pictures


@pytest.mark.slow
def test_figure_data_and_caption_are_written(tmp_path: Path):
    clip, objects = retouch.load("builtin"), boxed_pictures(2)
    files = write_trace(tmp_path, causal_trace(clip, objects, TraceSettings(tokens=2)))
    assert [file.name for file in files] == ["trace.png", "trace.svg", "trace.csv", "trace.json"]
    facts = json.loads((tmp_path / "trace.json").read_text())
    assert facts["title"]
    assert "3 standard deviations" in facts["caption"]
    assert "the class token and 2 patches at random) and 2 pairs of" in facts["caption"]
    assert facts["numbers"]["towers"]["image"]["mlp"][0]["mean"] > 0
    svg = (tmp_path / "trace.svg").read_text()
    for text in ("Visual tower", "Text tower", "after attention", "3 standard deviations"):
        assert text in svg
    table = (tmp_path / "trace.csv").read_text().splitlines()
    assert table[0] == "tower,site,layer,aie,low,high,pairs"
    assert len(table) == 1 + 3 * (6 + 4)
    write_trace(tmp_path / "text", causal_trace(clip, objects, TraceSettings(towers=("text",))))
    assert "Visual tower" not in (tmp_path / "text" / "trace.svg").read_text()
    assert "averaged over every token and" in (tmp_path / "text" / "trace.json").read_text()
