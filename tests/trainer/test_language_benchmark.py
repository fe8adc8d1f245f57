"""benchmarks/language.py: cells are resumed, rates searched, and results put into the document."""

import json
import math
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from language_models import copies, llama, same, tokenizer

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def language() -> Any:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import language

        yield language
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, language: Any) -> Path:
    home = tmp_path_factory.mktemp("language")
    llama().save_pretrained(home / "model")
    tokenizer().save_pretrained(home / "model")
    (home / "data").mkdir()
    files = [f"{name}-{part}" for name in language.DOMAINS for part in ("train", "test")]
    for number, name in enumerate([*files, *language.CONTROLS]):
        rows = [{"text": f"{name} {chr(97 + number)} {n} " * 30} for n in range(4)]
        text = "\n".join(map(json.dumps, rows))
        (home / "data" / f"{name}.jsonl").write_text(text)
    return home


def run(language: Any, folders: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    words = ["--model", folders / "model", "--data", folders / "data", "--smoke", *options]
    monkeypatch.setattr(sys, "argv", ["language.py", *map(str, words)])
    language.main()


@pytest.mark.slow
def test_cells_are_resumed(language, folders, monkeypatch, tmp_path, capsys):
    out = tmp_path / "rows.jsonl"
    run(language, folders, monkeypatch, "--out", str(out), "--cells", "2")
    first = out.read_text()
    assert [json.loads(row)["method"] for row in first.splitlines()] == [
        "frozen",
        "full",
        "WiSE-FT",
    ]
    run(language, folders, monkeypatch, "--out", str(out), "--cells", "1")
    assert out.read_text().startswith(first)
    assert json.loads(out.read_text().splitlines()[-1])["lr"] == 3e-4
    run(language, folders, monkeypatch, "--out", str(out), "--budget", "0.001")
    assert len(out.read_text().splitlines()) == 5
    assert "run it again to go on" in capsys.readouterr().out


@pytest.mark.slow
def test_every_kind_of_method_trains_and_the_same_seed_gives_the_same_row(
    language, folders, monkeypatch, tmp_path
):
    monkeypatch.setattr(
        sys,
        "argv",
        ["x", "--smoke", "--model", str(folders / "model"), "--data", str(folders / "data")],
    )
    bench = language.Bench(language.arguments())
    start = copies(llama())
    names = ("SPU by neuron + replay + half step", "LoRA r=8")
    for method in (each for each in language.methods() if each.name in names):
        (row, *_) = language.run_cell(bench, method, 1e-2, 0)
        assert row["bpb"] != row["before"]
        moved = {
            name
            for name, old in start.items()
            if not torch.equal(bench.model.state_dict()[name], old)
        }
        if method.score:
            assert moved <= language.locate(bench.model).keys()
        (again, *_) = language.run_cell(bench, method, 1e-2, 0)
        assert again["bpb"] == row["bpb"]
    bench.reset()
    assert same(copies(bench.model), start)


def fake_row(language: Any, method: str, lr: float, seed: int, value: float) -> dict[str, Any]:
    names = [*language.DOMAINS, *language.CONTROLS]
    bits = {key: [value * 10, value * 20] for key in names}
    return {
        "method": method,
        "lr": lr,
        "seed": seed,
        "bpb": dict.fromkeys(names, value),
        "before": dict.fromkeys(names, 1.0),
        "bits": bits,
        "bytes": {key: [10, 20] for key in names},
    }


def test_rates_are_searched_on_seed_0_and_reported_on_others(language):
    full = language.methods()[0]
    rows = [fake_row(language, "frozen", 0.0, 0, 1.0)]
    assert next(language.missing(rows))[1:] == (full.lrs[0], 0)
    for lr, value in zip(full.lrs, (1.3, 1.2, 1.4), strict=True):
        rows.append(fake_row(language, "full", lr, 0, value))
    assert next(language.missing(rows)) == (full, full.lrs[1], 1)
    rows[-1] = fake_row(language, "full", full.lrs[2], 0, 1.1)  # best at the edge: one beyond
    assert next(language.missing(rows)) == (full, full.lrs[2] * 3, 0)
    rows.append(fake_row(language, "full", full.lrs[2] * 3, 0, math.nan))
    assert language.best_rate(rows, full) == full.lrs[2]


def test_results_are_put_into_the_document(language, tmp_path, monkeypatch, capsys):
    import language_report  # beside `language`

    shutil.copy(ROOT / "docs" / "language.md", tmp_path / "language.md")
    (tmp_path / "pictures").mkdir()
    rows = [fake_row(language, "frozen", 0.0, 0, 1.0)]
    full = language.methods()[0]
    rows += [fake_row(language, "full", lr, 0, 1.5) for lr in full.lrs]
    rows += [fake_row(language, "full", full.lrs[0], seed, 1.25) for seed in (1, 2, 3)]
    rows += [fake_row(language, "full", full.lrs[0] / 3, 0, 1.9)]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    for _ in range(2):  # a second time it replaces the first
        words = ["x", "--results", str(file), "--document", str(tmp_path / "language.md")]
        monkeypatch.setattr(sys, "argv", words)
        language_report.main()
    document = (tmp_path / "language.md").read_text()
    assert document.count("| full | 0.0001 | 1.250 | +0.250 (+0.250 … +0.250) |") == 1
    assert "When to prefer LoRA" in document
    assert (tmp_path / "pictures" / "language.png").stat().st_size > 10_000
