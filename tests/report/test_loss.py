"""Loss curves from a run's log."""

import re
from pathlib import Path

import pytest
from fake_results import SIGNS, fake_results
from report_pages import Page, page_of
from run_folders import by_class, write_run

from retouch.errors import UserError
from retouch.evaluate import Results
from retouch.report import charts as plots
from retouch.report import write_report
from retouch.report.charts.loss import moving_average, read_losses
from retouch.train.run_folder.metrics import METRICS, LoggedStep, MetricsFile


def write_log(folder: Path, tasks: int = 3, steps: int = 40) -> Path:
    """The losses of a run, as a run writes them; the last line was cut off."""
    lines = [
        {"task": t + 1, "epoch": 1, "step": s + 1, "loss": 3 - t - s / steps, "lr": 1e-3}
        for t in range(tasks)
        for s in range(steps)
    ]
    file, results = MetricsFile(folder / METRICS), Results.read(folder)
    (folder / METRICS).unlink(missing_ok=True)
    for line in lines:
        file.add(LoggedStep(**line))
    results.losses = file.last_checksum
    results.write(folder)
    with (folder / METRICS).open("ab") as half_a_line:
        half_a_line.write(b'{"task": 3, "lo')
    return folder


@pytest.mark.slow
def test_the_loss_of_every_step_is_drawn_and_listed(tmp_path: Path) -> None:
    run = write_log(write_run(tmp_path / "run", fake_results(), by_class(SIGNS), deltas=False))
    steps = read_losses(run)
    assert [steps[0].step, steps[-1].step, len(steps)] == [1, 120, 120]
    axes = plots.loss_curve(steps).axes[0]
    assert len([line for line in axes.lines if len(line.get_xdata()) == 40]) == 2 * 3
    assert [text.get_text() for text in axes.texts] == ["task 1", "task 2", "task 3"]
    page = Page(write_report(run, [run]))
    assert "While it learned" in page.text
    assert re.search(r"task 2\s*40\s*2\s*1.03[78]\s*0.001", page.text)
    assert any(v and v.startswith("Training loss over 120 steps") for _, v in page.attributes)
    assert (run / "plots" / "loss.png").exists()
    bare = write_run(tmp_path / "bare", fake_results(), deltas=False)
    assert "While it learned" not in page_of(bare, bare).text


@pytest.mark.slow
def test_many_steps_are_averaged_and_damaged_lines_refused(tmp_path: Path) -> None:
    steps = read_losses(
        write_log(write_run(tmp_path / "run", fake_results(), deltas=False), tasks=1, steps=5000)
    )
    lines = plots.loss_curve(steps).axes[0].lines
    assert max(len(line.get_xdata()) for line in lines) <= 1250
    file = tmp_path / "run" / "metrics.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"loss": 2.9', b'"loss": 0.9', 1))
    with pytest.raises(UserError, match=r"line 2 of .*metrics\.jsonl is damaged"):
        write_report(tmp_path / "run", [tmp_path / "run"])
    only = read_losses(write_log(tmp_path / "run", tasks=1, steps=1))[0]
    for draw in (plots.loss_curve, plots.rate_curve):
        assert draw([only]).axes
    assert moving_average([1, 2, 3, 4, 5, 6], 1) == [1, 2, 3, 4, 5, 5.5]
    assert read_losses(tmp_path / "nowhere") == read_losses(None) == []
