"""The command line on several ranks: rank 0 prints and writes."""

import json
from pathlib import Path

import pytest
from distributed_runs import accuracies, command, write_image_folders
from rank_processes import run_ranks_or_errors
from tiny import tiny_folder

from retouch.evaluate import Results
from retouch.evaluate.per_class import PerClass

pytestmark = pytest.mark.slow


@pytest.mark.usefixtures("undrawn_plots")
def test_rank_0_alone_prints_and_writes(tmp_path: Path):
    data = write_image_folders(tmp_path / "data")
    model = str(tiny_folder(tmp_path / "model"))
    control = write_image_folders(tmp_path / "control")
    words = ["learn", data, "--model", model, "--control", control, "--tasks", "2", "--batch"]
    words += ["7", "--epochs", "2", "--lr", "1e-3"]
    runs = []
    for num_ranks in (1, 2):
        folder = tmp_path / str(num_ranks)
        ranks = run_ranks_or_errors(num_ranks, command, *words, "--out", str(folder), join=False)
        assert [code for code, _, _ in ranks] == [0] * num_ranks, ranks
        assert "text-first task  2/2" in ranks[0][1]
        assert [output for _, *output in ranks[1:]] == [["", ""]] * (num_ranks - 1)
        assert (", in 2 processes;" in ranks[0][1]) == (num_ranks == 2)
        shown = run_ranks_or_errors(num_ranks, command, "eval", str(folder), "--json", join=False)
        assert [stdout for _, stdout, _ in shown[1:]] == [""] * (num_ranks - 1)
        per_class = json.loads(shown[0][1])["classes"]
        runs.append((Results.read(folder), PerClass.read(folder), _files(folder), per_class))
    single, double = runs
    assert accuracies(single[0]) == accuracies(double[0])
    assert single[1:] == double[1:]
    assert double[0].environment["processes"] == "2"
    wrong = run_ranks_or_errors(2, command, *words, "--lr", "5", "--out", str(folder), join=False)
    assert [code for code, _, _ in wrong] == [1, 1]
    reports = [stderr for _, _, stderr in wrong if "other settings (settings.lr" in stderr]
    assert len(reports) == 1, "an error on all ranks is reported once"


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
