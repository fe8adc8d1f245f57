"""Suites are data: the paper's tables, checked, and those of users."""

from pathlib import Path

import pytest
from bench_for_tests import PAPER

from retouch.bench import SUITES, load_suite
from retouch.bench.suite import load_defaults
from retouch.builtin.demo_settings import demo_settings
from retouch.errors import UserError
from retouch.evaluate.metrics import accuracy_increase, average_control_drop, average_forgetting

# The paper's Aircraft accuracy of ER with 20 tasks, 5.67, must be 35.67: its average says so.
TYPOS = {("task-length", "ER 20", "accuracy"): 5.05}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [n for n in SUITES if n not in ("efficiency", "demo", "pareto", "mtil", "mtil-2", "x-tail")],
)
def test_the_papers_numbers_agree_with_its_averages(name: str):
    """To its rounding: a mistyped number would show. The paper's own typos are listed."""
    frozen = {d: load_suite("table1").rows[0].paper[d] for d in PAPER}
    for row in load_suite(name).rows:
        if row.method == "frozen":
            continue
        paper = [row.paper[d] for d in PAPER]
        averages = {
            "accuracy": accuracy_increase([a for a, _, _ in paper], [frozen[d][0] for d in PAPER]),
            "forgetting": average_forgetting([f for _, f, _ in paper]),
            "control": average_control_drop(
                [c for _, _, c in paper], [frozen[d][2] for d in PAPER]
            ),
        }
        for (metric, average), stated in zip(averages.items(), row.paper["average"], strict=True):
            tolerance = TYPOS.get((name, row.name, metric), 0.06)
            assert average == pytest.approx(stated, abs=tolerance), (row.name, metric)


def test_table1_has_the_papers_rows_in_its_order():
    rows = [row.method for row in load_suite("table1").rows]
    assert rows[:4] == ["frozen", "flyp", "mas", "er"]
    assert rows[-1] == "spu"
    assert len(rows) == 16
    assert load_suite("table1").rows[-1].paper["average"] == (21.34, 4.51, 0.94)


def test_a_suite_from_a_file(tmp_path: Path):
    file = tmp_path / "mine.yaml"
    file.write_text("title: mine\nrows: [{name: a, method: er, change: {replay.size: 7}}]\n")
    assert load_suite(str(file)).rows[0].change == {"replay.size": 7}
    file.write_text("title: mine\nrows: [{name: a, methud: er}]\n")
    with pytest.raises(UserError, match=r"rows\.0\.method"):
        load_suite(str(file))
    file.write_text("title: t\nlr: [0.5]\nrows: [{name: a, method: er}]\n")
    with pytest.raises(UserError, match=r"mine.yaml, lr=\[0.5\] is for a suite of the kind pareto"):
        load_suite(str(file))
    with pytest.raises(UserError, match="there is no suite 'tabel1'"):
        load_suite("tabel1")
    with pytest.raises(UserError, match="has no method 'spo'"):
        load_suite("table1").only(["spo"])


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ("{seed: 3}", "settings.*seed=3 is not for a suite; name the seeds when you run it"),
        ("{epoch: 3}", "settings.*epoch: there is no such entry"),
        ("{lr: fast}", "settings.*lr='fast'"),
    ],
)
def test_settings_are_checked_when_a_suite_is_read(settings: str, problem: str, tmp_path: Path):
    file = tmp_path / "own.yaml"
    row = f"{{name: SPU, method: spu, settings: {settings}}}"
    for text in (
        f"title: T\nsettings: {settings}\nrows: [{{name: SPU, method: spu}}]",
        f"title: T\nrows: [{row}]",
    ):
        file.write_text(text)
        with pytest.raises(UserError, match=problem):
            load_suite(str(file))


def test_defaults_of_the_paper_and_of_the_built_in_model():
    assert load_defaults("paper").datasets == PAPER
    builtin, demo = load_defaults("builtin"), demo_settings()
    assert (builtin.tasks, builtin.replay) == (demo.tasks, demo.replay)
    assert builtin.small_model
    assert builtin.settings == {"epochs": 7, "batch": 32, "weight_decay": 0.01}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("summary: Käse\n".encode("latin-1"), "not in UTF-8"),
        (b"a: " + b"[" * 1500, "nested too deeply"),
        (b"summary: 2001-99-99\n", "cannot be read as YAML"),
        (b"- 1\n", "is not a suite"),
    ],
)
def test_files_that_cannot_be_read(content: bytes, problem: str, tmp_path: Path):
    (tmp_path / "own.yaml").write_bytes(content)
    with pytest.raises(UserError, match=problem):
        load_suite(str(tmp_path / "own.yaml"))
