"""Process groups and devices."""

import json
import os
import subprocess
import sys
from pathlib import Path

import letters
import pytest
import torch
from layouts import make_folder

from retouch.distributed.rendezvous import process_group, rank_device
from retouch.errors import UserError


def test_each_rank_gets_its_own_gpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert str(rank_device("auto")) == "cuda:2"
    assert str(rank_device("cpu")) == "cpu"
    with pytest.raises(UserError, match=r"device cuda:1: each of 4 processes takes a GPU"):
        rank_device("cuda:1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UserError, match=r"process 3 on .* sees 2 there.*one process per GPU"):
        rank_device("cuda")


@pytest.mark.parametrize("name", ["LOCAL_RANK", "RANK"])
def test_a_rank_that_is_no_number(name: str, monkeypatch: pytest.MonkeyPatch):
    for variable in ("LOCAL_RANK", "RANK"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, "-1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(UserError, match=rf"{name}=-1 is not a whole number of at least 0"):
        rank_device("auto")


def test_processes_that_cannot_connect(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match=r"could not connect.*torchrun"), process_group("cpu"):
        pass


@pytest.mark.slow
def test_torchrun(tmp_path: Path):
    """With the real launcher; the other tests fork. The model needs no transformers to import."""
    model = f"{Path(letters.__file__)}:letters_clip"
    photos = make_folder(tmp_path / "photos", {"red": 5, "green": 4})
    torchrun = Path(sys.executable).with_name("torchrun")
    words = ["eval", model, "--data", photos, "--no-cache", "--json"]
    process = subprocess.run(
        [torchrun, "--nproc-per-node", "2", "-m", "retouch", *words],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},
        timeout=120,
    )
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout)["data"]["images"] == 9
