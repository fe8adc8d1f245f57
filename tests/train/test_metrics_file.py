"""The losses of a run: missing lines are noticed, and a line that was cut off is not."""

from pathlib import Path

import pytest
from runs import Stop, teach

from retouch.errors import UserError
from retouch.train.run_folder.metrics import read_metrics


@pytest.mark.slow
def test_missing_losses_are_refused(tmp_path: Path):
    with pytest.raises(ZeroDivisionError):
        teach(tmp_path, callback=Stop(16, ZeroDivisionError()), checkpoint_seconds=0)
    file = tmp_path / "metrics.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-1]))
    with pytest.raises(UserError, match="losses up to step 6 of task 2 are missing there"):
        teach(tmp_path)
    file.write_bytes(b"".join(lines[:3] + lines[4:]))
    message = r"line 4 of .*metrics\.jsonl is damaged"
    with pytest.raises(UserError, match=message):
        teach(tmp_path)
    file.write_bytes(b"".join(lines) + b'{"task": 2, "ep')  # killed while it wrote
    assert teach(tmp_path)[0].finished


@pytest.mark.slow
def test_losses_of_learned_tasks_are_complete_or_refused(tmp_path: Path):
    """Also where whole lines are missing at the end, or the last one is damaged."""
    teach(tmp_path)
    file = tmp_path / "metrics.jsonl"
    whole = file.read_bytes()
    lines = whole.splitlines(keepends=True)
    assert len(read_metrics(tmp_path)) == len(lines) == 27
    cut = [b"".join(lines[:-1]), b"".join(lines[:9]), b"".join(lines[9:]), b"", whole[:-9]]
    cut += [whole[:-5] + b"x" + whole[-4:], whole[:-1] + b"x", whole + lines[-1], whole[:-2]]
    for damaged in cut:
        file.write_bytes(damaged)
        with pytest.raises(UserError, match=r"metrics\.jsonl is damaged"):
            read_metrics(tmp_path)
    file.write_bytes(whole[:-1])  # all but the line break
    assert len(read_metrics(tmp_path)) == 27


@pytest.mark.slow
def test_a_run_goes_on_without_losses_that_were_deleted(tmp_path: Path):
    with pytest.raises(ZeroDivisionError):
        teach(tmp_path, callback=Stop(16, ZeroDivisionError()), checkpoint_seconds=0)
    (tmp_path / "metrics.jsonl").unlink()
    results, _ = teach(tmp_path)
    assert [note for note in results.notes if "metrics.jsonl is gone" in note]
    first = read_metrics(tmp_path)[0]
    assert (first.task, first.step) == (2, 7)
