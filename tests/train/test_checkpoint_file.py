"""The files that an interrupted task is resumed from: damaged ones are refused by name."""

import json
import shutil
from pathlib import Path

import pytest
from runs import Stop, teach
from safetensors.torch import load
from safetensors.torch import save as to_bytes

from retouch.errors import UserError
from retouch.files import checksummed
from retouch.train.run_folder.checkpoint import checkpoint_task


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run by MAS, which has a state, stopped after step 5 of its second task."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(ZeroDivisionError):
        teach(folder, "mas", callback=Stop(15, ZeroDivisionError()), checkpoint_seconds=0)
    return folder


@pytest.fixture
def stopped(stopped_once: Path, tmp_path: Path) -> Path:
    return shutil.copytree(stopped_once, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("checkpoint.safetensors", "cut"),
        ("checkpoint.safetensors", "edited"),
        ("state-01.safetensors", "cut"),
        ("state-01.safetensors", "edited"),
        ("state-01.safetensors", "gone"),
    ],
)
def test_damaged_files_are_refused_by_name(file: str, damage: str, stopped: Path):
    """A run resumed from changed files would silently end with other numbers."""
    path = stopped / file
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        changed = data[:-1] + bytes([data[-1] ^ 1])
        path.write_bytes(data[: len(data) // 2] if damage == "cut" else changed)
    with pytest.raises(UserError, match=f"{file}.* (is damaged|cannot be read)"):
        teach(stopped, "mas")
    if damage == "cut":
        path.write_bytes(data)
        assert teach(stopped, "mas")[0].finished


@pytest.mark.parametrize("step", [10, 1_000_000, 0])
def test_a_checkpoint_of_another_step_is_refused(step: int, stopped: Path):
    """Even where its checksum was corrected."""
    file = stopped / "checkpoint.safetensors"
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    position = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["retouch"])
    tensors = load(data)
    assert checkpoint_task(file) == 1
    position["step"] = step
    file.write_bytes(to_bytes(tensors, {"retouch": json.dumps(position)}))
    with pytest.raises(UserError, match=r"checkpoint\.safetensors is damaged.*delete it to learn"):
        teach(stopped, "mas")
    file.write_bytes(to_bytes(tensors, {"retouch": json.dumps(checksummed.seal(position))}))
    with pytest.raises(UserError, match=rf"(after step {step} of 9|step={step}: .*); delete it"):
        teach(stopped, "mas")
