"""The benchmark that runs several commands on one model."""

import sys
from pathlib import Path
from typing import Any

import pytest
from bench_for_tests import tiny_model

from retouch.clip import Clip


def test_lines_share_a_model_and_one_that_fails_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import real_queue
    import real_tower

    ran: list[tuple[list[str], Any, bool]] = []

    def run(argv: list[str], model: Any) -> None:
        clip = model()
        ran.append((argv, model, clip.compiled))
        real_queue.time.sleep(0.01)
        if "b.yaml" in argv:
            queue.write_text(queue.read_text() + "added.yaml\n")
        if "bad.yaml" in argv:
            raise SystemExit("no cell was finished")
        assert float(clip.logit_scale.detach()) == scale, "the pre-trained weights"
        with real_queue.torch.no_grad():
            next(clip.model.parameters()).zero_()
            clip.model.logit_scale.zero_()

    loaded = tiny_model()
    scale = float(loaded.logit_scale.detach())
    monkeypatch.setattr(real_tower, "load", lambda folder, device: loaded)
    monkeypatch.setattr(real_tower, "main", run)
    queue = tmp_path / "queue.txt"
    queue.write_text(
        "a.yaml --seeds 1,2  # two seeds\n\n# nothing\nbad.yaml --compile\nb.yaml --compile\n"
    )
    monkeypatch.setattr(Clip, "to", Clip.to)  # so that it is restored
    timed = ["--time", "retouch.clip.model:Clip.to", "real_tower:main"]
    monkeypatch.setattr(sys, "argv", ["x", str(queue), "--out", str(tmp_path / "out"), *timed])
    with pytest.raises(SystemExit) as ended:
        real_queue.main()
    assert ended.value.code == 1
    assert [argv[0] for argv, _, _ in ran] == ["a.yaml", "bad.yaml", "b.yaml", "added.yaml"]
    assert len({id(model) for _, model, _ in ran}) == 1
    assert [compiled for _, _, compiled in ran] == [False, True, True, False]
    ends = [argv[-2:] for argv, _, _ in ran]
    assert ends == [["--out", str(tmp_path / "out" / number)] for number in ("1", "4", "5", "6")]
    printed = capsys.readouterr().out
    assert printed.count("=== ") == printed.count("--- ") == 4
    assert printed.count("0 calls  retouch.clip.model:Clip.to") == 4
    assert printed.count("1 calls  real_tower:main") == 4
