"""The command `retouch trace`."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from retouch.cli import app
from retouch.train.run_folder.files import refuse_foreign


def command(*args: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["trace", *map(str, args)])
    return done.exit_code, done.output


@pytest.mark.slow
def test_trace_writes_its_files_and_explains_mistakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    small = ("builtin", "--images", 2, "--tokens", 2)
    code, output = command(*small, "--json")
    assert code == 0, output
    result = json.loads(output[output.index("{") :])
    assert result["pairs"] == 2
    assert sorted(path.name for path in Path("trace").glob("trace.*")) == [
        "trace.csv", "trace.json", "trace.png", "trace.svg",
    ]  # fmt: skip
    code, output = command(*small)
    assert code == 0
    assert "Average indirect effect" in output
    assert "MLPs lead in" in output
    Path("mine").mkdir()
    Path("mine", "trace.csv").write_text("my own")
    for args, message in (
        ((*small, "-o", "mine"), "mine/trace.csv exists already, and retouch does not"),
        ((*small, "--noise", 1), "holds a trace with noise"),
        (("builtin", "--tokens", "some"), "use all, object, or a number"),
        (("builtin", "--noise", 0), "corrupts nothing"),
        (("builtin", "--coco", "nowhere"), "nowhere has no instances"),
        (("builtin", "--task", 1), "is not a run's folder"),
    ):
        code, output = command(*args)
        assert code == 1, output
        assert message in " ".join(output.split())
    assert [path.name for path in Path("mine").iterdir()] == ["trace.csv"]
    Path("run", "analysis").mkdir(parents=True)
    Path("trace").rename("run/analysis/trace")
    refuse_foreign(Path("run"))  # which knows all that was written
