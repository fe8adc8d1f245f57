"""Adapters for peft: loaded with peft alone, they give the model that was learned."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from backbones import open_clip
from exports import assert_no_local_path, features
from PIL import Image
from recipes_for_tests import quick, reference
from safetensors.torch import load_file
from tiny import CLASSES, images, tiny_clip, tiny_folder

import retouch
from retouch.clip import Clip
from retouch.data import Stream
from retouch.errors import UserError
from retouch.export import ExportModel, export, of_model, of_run
from retouch.methods import Settings
from retouch.sparse import fingerprint
from retouch.sparse.delta.write_adapter import sparsity
from retouch.train import open_run

CODE = re.compile(r"```python\n(.*?)```", re.S)


def teach(clip: Clip, out: Path, method: str = "spu", **options: Any) -> Path:
    stream = Stream.split(images("train", 6, 6), images("test", 6, 3), tasks=2, order=0)
    settings = Settings(epochs=2, batch=8, lr=1e-2)
    retouch.teach(clip, stream, quick(method), settings=settings, out=out, **options)
    return out


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("adapted")
    return teach(retouch.load(str(tiny_folder(home / "model"))), home / "run")


@pytest.fixture(scope="module")
def adapter(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "adapter"
    done = export(of_run(run), "peft", folder)
    assert done.max_difference == 0
    return folder


def load_base(run: Path) -> Any:
    return transformers.CLIPModel.from_pretrained(run.parent / "model", dtype=torch.float32).eval()


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    rng = torch.Generator().manual_seed(3)
    ids = torch.randint(4, 40, (4, 8), generator=rng)
    ids[:, -1] = 3
    pixels = torch.randn(5, 3, 16, 16, generator=rng)
    return model(input_ids=ids, pixel_values=pixels).logits_per_image


def test_peft_alone_gives_the_logits_of_the_tuned_model(run: Path, adapter: Path):
    tuned = open_run(run).load_task().model
    base = load_base(run)
    before = logits(base)
    model = peft.PeftModel.from_pretrained(base, adapter).eval()
    assert torch.equal(logits(model), logits(tuned))
    assert not torch.equal(logits(model), before)
    with model.disable_adapter():
        assert torch.equal(logits(model), before)
    assert fingerprint(model.merge_and_unload()) == fingerprint(tuned)


def test_the_files_are_those_that_peft_writes(run: Path, adapter: Path, tmp_path: Path):
    model = peft.PeftModel.from_pretrained(load_base(run), adapter)
    model.save_pretrained(tmp_path / "again")
    ours, theirs = (
        load_file(f / "adapter_model.safetensors") for f in (adapter, tmp_path / "again")
    )
    assert {n: (t.dtype, t.shape) for n, t in ours.items()} == {
        n: (t.dtype, t.shape) for n, t in theirs.items()
    }
    assert {t.dtype for t in ours.values()} == {torch.int32, torch.float32}
    config = json.loads((adapter / "adapter_config.json").read_text())
    assert config["peft_type"] == "SUPERTUNING"
    counts = {len(t) for n, t in ours.items() if n.endswith("indices")}
    assert counts == {int(32 * 64 * (1 - config["sparsity"]))}
    assert_no_local_path(adapter / "task-01")


def test_each_task_is_an_adapter_of_its_own(run: Path, adapter: Path):
    opened = open_run(run)
    model = peft.PeftModel.from_pretrained(
        load_base(run), adapter / "task-01", adapter_name="task-01"
    ).eval()
    model.load_adapter(adapter / "task-02", adapter_name="task-02")
    assert torch.equal(logits(model), logits(opened.load_task(1).model))
    model.base_model.set_adapter(["task-01", "task-02"])
    assert torch.equal(logits(model), logits(opened.load_task(2).model))
    merged = model.merge_and_unload(adapter_names=["task-01", "task-02"])
    assert fingerprint(merged) == fingerprint(opened.clip.model)


def test_unmerging_is_rounded_and_the_card_says_so(run: Path, adapter: Path):
    base = load_base(run)
    before = fingerprint(base)
    model = peft.PeftModel.from_pretrained(base, adapter)
    model.merge_adapter()
    model.unmerge_adapter()
    assert fingerprint(model.unload()) != before
    card = (adapter / "README.md").read_text()
    assert "which is rounded" in card
    assert "library_name: peft" in card


def test_an_adapter_after_the_first_task(run: Path, tmp_path: Path):
    export(of_run(run, task=1), "peft", tmp_path / "one")
    assert not (tmp_path / "one" / "task-01").exists()
    model = peft.PeftModel.from_pretrained(load_base(run), tmp_path / "one").eval()
    assert torch.equal(logits(model), logits(open_run(run).load_task(1).model))


@pytest.mark.slow
def test_the_code_of_the_card_runs(
    run: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(adapter)
    monkeypatch.setitem(sys.modules, "retouch", None)
    space = run_card(adapter, "path/to/the/base/model", run.parent / "model")
    output = capsys.readouterr().out
    assert any(name in output for name in CLASSES)
    assert torch.equal(logits(space["model"]), logits(open_run_model(run)))


def run_card(adapter: Path, base: str, path: Path) -> dict[str, Any]:
    """The variables of all Python in a card, with the base model at a path of this machine."""
    code = "\n".join(CODE.findall((adapter / "README.md").read_text()))
    for old, new in ((base, path), ("image.jpg", adapter.parent / "x.png")):
        assert old in code
        code = code.replace(old, str(new))
    Image.new("RGB", (20, 20), "red").save(adapter.parent / "x.png")
    space: dict[str, Any] = {}
    exec(code, space)
    return space


def open_run_model(run: Path) -> Any:
    return open_run(run).load_task().model


@pytest.mark.slow
def test_a_model_of_open_clip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its text tower's layers are named as the end of those of its visual tower."""
    open_clip(name="adapted").save(tmp_path)
    clip = retouch.load(f"open_clip:adapted@{tmp_path / 'open_clip_model.safetensors'}")
    run = teach(clip, tmp_path / "run")
    assert export(of_run(run), "peft", tmp_path / "adapter").max_difference == 0
    base = open_run(run)
    model = peft.PeftModel.from_pretrained(base.clip.model, tmp_path / "adapter").eval()
    expected = features(open_run(run).load_task())
    assert all(map(torch.equal, features(base.clip), expected))
    assert model.peft_config["default"].base_model_name_or_path is None
    monkeypatch.chdir(tmp_path / "adapter")
    weights = tmp_path / "open_clip_model.safetensors"
    space = run_card(tmp_path / "adapter", "path/to/its/weights.safetensors", weights)
    merged = space["model"].merge_and_unload(adapter_names=["task-01", "task-02"])
    assert fingerprint(merged) == fingerprint(open_run_model(run))


@pytest.mark.slow
def test_lora_of_a_run_is_an_adapter_too(tmp_path: Path):
    """All entries of some layers move, so there is no room to correct what is rounded."""
    clip = retouch.load(str(tiny_folder(tmp_path / "model")))
    run = teach(clip, tmp_path / "run", "lora-ewc", reference=reference())
    export(of_run(run), "peft", tmp_path / "adapter")
    model = peft.PeftModel.from_pretrained(load_base(run), tmp_path / "adapter").eval()
    torch.testing.assert_close(logits(model), logits(open_run_model(run)), rtol=0, atol=1e-4)


@pytest.mark.slow
def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = teach(retouch.load(str(tiny_folder(tmp_path / "model"))), tmp_path / "run", "flyp")
    with pytest.raises(UserError, match=r"flyp also changed \d+ tensors that are not the weight"):
        export(of_run(run), "peft", tmp_path / "no")
    for nothing in (of_run(run, task=0), of_model(str(tmp_path / "model"))):
        with pytest.raises(UserError, match="no weight was changed"):
            export(nothing, "peft", tmp_path / "no")
    with pytest.raises(UserError, match="no weight was changed"):
        export(ExportModel(tiny_clip(), "tiny"), "peft", tmp_path / "no")
    monkeypatch.delattr(peft, "SupertuningConfig")
    with pytest.raises(UserError, match=r"0\.21 or newer"):
        export(of_run(run), "peft", tmp_path / "no")
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserError, match=r"pip install 'retouch\[peft\]'"):
        export(of_run(run), "peft", tmp_path / "no")
    assert not (tmp_path / "no").exists()


def test_the_sparsity_leaves_room_for_every_entry():
    """In floats, 1 - (1 - 1/3) is less than 1/3."""
    for size in (7, 64, 2048, 2359296, 1000003):
        for count in {1, 2, size // 10, size // 3, size - 1, size} - {0}:
            rate = sparsity({"a": size}, {"a": count})
            assert 0 <= rate < 1
            assert int(size * (1 - rate)) in (count, count + 1)
    rate = sparsity({"a": 100, "b": 1000}, {"a": 10, "b": 101})
    assert int(100 * (1 - rate)) >= 10
    assert int(1000 * (1 - rate)) >= 101
