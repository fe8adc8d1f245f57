"""The command `retouch report`."""

import json
import os
import re
from pathlib import Path

import pytest
from fake_results import fake_results
from report_pages import Page
from run_folders import write_run
from typer.testing import CliRunner

from retouch.cli import app
from retouch.errors import UserError
from retouch.plotting.rendering import to_svg
from retouch.report import write_report


def report(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["report", *map(str, arguments)])
    return done.exit_code, done.stdout, " ".join(done.stderr.split())


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of one method."""
    folder = tmp_path_factory.mktemp("two_runs")
    write_run(folder / "march", fake_results(), deltas=False)
    write_run(folder / "april", fake_results(accuracy=(90, 85, 80)), deltas=False)
    return folder


@pytest.mark.slow
def test_report_writes_the_page_of_a_run_again(two_runs: Path, tmp_path: Path) -> None:
    code, output, errors = report(two_runs / "march")
    assert (code, errors) == (0, "")
    assert "91.4" in output
    page = two_runs / "march" / "report.html"
    assert str(page) in output.replace("\n", "")
    assert report(two_runs / "march", "-o", tmp_path)[0] == 0
    assert (tmp_path / "report.html").read_bytes() == page.read_bytes()
    assert report(two_runs / "march", "-o", tmp_path)[0] == 0, "it is written again"


@pytest.mark.slow
def test_report_compares_runs_by_their_folders(
    two_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retouch.report.figures.to_svg", to_svg)  # draw the plots
    write_report(two_runs / "march", [two_runs / "march"])
    (two_runs / "april" / "report.html").unlink(missing_ok=True)
    code, output, _ = report(two_runs / "march", two_runs / "april", two_runs / "march")
    assert code == 0
    assert re.search(r"march +60\.0.*\n *april +80\.0", output)
    page = Page(two_runs / "report.html")
    assert "april learned most: 80.0 %" in page.text
    assert "What 2 runs learned" in page.text
    assert "april</text>" in page.source
    links = [value for name, value in page.attributes if name == "href" and value[0] not in "#d"]
    assert set(links) == {"march/report.html"}, "april has no page yet"
    write_report(two_runs / "april", [two_runs / "april"])
    elsewhere = two_runs / "a folder" / "b"
    assert report(two_runs / "march", two_runs / "april", "-o", elsewhere)[0] == 0
    links = [v for n, v in Page(elsewhere / "report.html").attributes if n == "href"]
    assert {"../../march/report.html", "../../april/report.html"} <= set(links)
    assert all((elsewhere / link).is_file() for link in links if link.startswith(".."))


@pytest.mark.slow
def test_json_output_is_one_object(two_runs: Path, tmp_path: Path) -> None:
    code, output, errors = report(two_runs / "march", two_runs / "april", "--json", "-o", tmp_path)
    assert (code, errors) == (0, "")
    found = json.loads(output)
    assert found["page"] == str(tmp_path / "report.html")
    assert [run["metrics"]["accuracy"] for run in found["runs"]] == [60.0, 80.0]
    assert found["runs"][0]["run"] == str(two_runs / "march")


@pytest.mark.parametrize("name", ["report.html", "plots/over-time.png"])
def test_files_of_others_are_not_replaced(name: str, two_runs: Path, tmp_path: Path) -> None:
    theirs = tmp_path / name
    theirs.parent.mkdir(exist_ok=True)
    theirs.write_text("my thesis, written with retouch")
    code, _, errors = report(two_runs / "march", "-o", tmp_path)
    assert code == 1
    assert f"{theirs} exists already, and retouch does not" in errors
    assert theirs.read_text() == "my thesis, written with retouch"


@pytest.mark.slow
@pytest.mark.parametrize("written", [1, 4])
def test_killed_while_it_writes_it_can_be_run_again(
    written: int, two_runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [written]

    def replace(*paths: object) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        real(*paths)  # type: ignore[arg-type]

    real = os.replace
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        assert report(two_runs / "march", "-o", tmp_path)[0] == 130
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == written
    assert report(two_runs / "march", "-o", tmp_path)[0] == 0
    plots = sorted(path.name for path in (tmp_path / "plots").iterdir())
    assert "over-time.png" in plots
    assert not [name for name in plots if name.startswith(".")]


def test_a_page_of_others_is_not_replaced_by_the_library_either(
    two_runs: Path, tmp_path: Path
) -> None:
    (tmp_path / "report.html").write_text("my thesis")
    with pytest.raises(UserError, match="retouch does not seem to have written it"):
        write_report(tmp_path, [two_runs / "march"])
    assert (tmp_path / "report.html").read_text() == "my thesis"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_report_refuses_what_is_not_a_run(two_runs: Path, tmp_path: Path) -> None:
    for arguments, complaint in [
        (
            [two_runs],
            f"{two_runs} holds no run: results.json is missing there; name the runs in it, such as",
        ),
        ([tmp_path], f"{tmp_path} holds no run"),
        ([tmp_path / "none"], "there is no folder"),
        ([two_runs / "march" / "results.json"], "is a file; name the folder of a run"),
        ([two_runs / "march", two_runs / "april", "-o", two_runs / "march"], "a page of its own"),
        ([two_runs / "march", "-o", two_runs / "april"], "a page of its own"),
    ]:
        code, output, errors = report(*arguments)
        assert (code, output) == (1, "")
        assert complaint in errors
