"""The losses of a run: missing lines are noticed, and a line that was cut off is not."""

from pathlib import Path

import pytest
from runs import Stop, teach

from retouch.errors import UserError


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
