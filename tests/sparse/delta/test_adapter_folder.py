"""Adapters of peft, written by peft itself, become deltas."""

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import tiny_clip

from retouch.errors import UserError
from retouch.sparse import fingerprint, read_adapter

TARGETS = ["mlp.fc1", "q_proj"]
CONFIGS = {
    "super": peft.SupertuningConfig(target_modules=TARGETS, sparsity=0.93, init_weights=False),
    "supra": peft.SupertuningConfig(
        target_modules=TARGETS, sparsity=0.9, r=2, lora_alpha=3.0, init_weights=False
    ),
    "shira": peft.ShiraConfig(target_modules=TARGETS, r=1, random_seed=3, init_weights=False),
}


def save_adapter(folder: Path, kind: str) -> tuple[Path, Any]:
    """An adapter with random numbers, and the model that peft merges it into."""
    torch.manual_seed(1)
    model = peft.get_peft_model(tiny_clip().model, CONFIGS[kind])
    model.save_pretrained(folder)
    return folder, model.merge_and_unload()


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_delta_leads_to_what_peft_merges(kind: str, tmp_path: Path):
    folder, merged = save_adapter(tmp_path / "a", kind)
    model = tiny_clip().model
    before = fingerprint(model)
    delta = read_adapter(folder).delta(model, {"model": "tiny"})
    assert fingerprint(model) == before == delta.before
    assert len(delta.changes) == 8
    delta.save(tmp_path / "x.safetensors")
    delta.apply(model)
    assert fingerprint(model) == fingerprint(merged)
    delta.undo(model)
    assert fingerprint(model) == before


def test_positions_that_windows_stores_as_floats(tmp_path: Path):
    folder, merged = save_adapter(tmp_path / "a", "shira")
    tensors = load_file(folder / "adapter_model.safetensors")
    floats = {n: t.float() if n.endswith("indices") else t for n, t in tensors.items()}
    save_file(floats, folder / "adapter_model.safetensors")
    assert read_adapter(folder).delta(tiny_clip().model).after == fingerprint(merged)


def change_config(folder: Path, **entries: Any) -> None:
    file = folder / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **entries}))


def test_other_adapters_and_files_are_refused(tmp_path: Path):
    folder, _ = save_adapter(tmp_path / "a", "super")
    with pytest.raises(UserError, match="no adapter"):
        read_adapter(tmp_path)
    with pytest.raises(
        UserError, match=r"there is no folder .*nope; give the folder of an adapter"
    ):
        read_adapter(tmp_path / "nope")
    for entries, why in [
        ({"peft_type": "LORA"}, "LORA adapter, and only Super-Tuning and SHiRA"),
        ({"peft_type": None}, "None adapter"),
        ({"modules_to_save": ["head"]}, "whole modules"),
        ({"base_model_name_or_path": 7}, "damaged"),
        ({"peft_type": "SHIRA"}, "which no SHiRA adapter has"),
    ]:
        whole = (folder / "adapter_config.json").read_text()
        change_config(folder, **entries)
        with pytest.raises(UserError, match=why):
            read_adapter(folder)
        (folder / "adapter_config.json").write_text(whole)
    weights = folder / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    with pytest.raises(UserError, match="cannot be read"):
        read_adapter(folder)
    weights.rename(folder / "adapter_model.bin")
    with pytest.raises(UserError, match=r"only pickled weights .* can run code"):
        read_adapter(folder)
    (folder / "adapter_model.bin").unlink()
    with pytest.raises(UserError, match=r"but no adapter_model\.safetensors"):
        read_adapter(folder)
    (folder / "adapter_config.json").write_text("[" * 100_000)
    with pytest.raises(UserError, match="damaged"):
        read_adapter(folder)


def refusal(folder: Path) -> str:
    try:
        read_adapter(folder).delta(tiny_clip().model)
    except UserError as why:
        return str(why)
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("kind", CONFIGS)
def test_tensors_that_do_not_fit_are_refused(kind: str, tmp_path: Path):
    """Whatever the file holds: no index error, no weights of another model, nothing half done."""
    folder, _ = save_adapter(tmp_path / "a", kind)
    file = folder / "adapter_model.safetensors"
    whole = load_file(file)
    key = next(name for name in whole if name.endswith("indices"))
    other = next(name for name in whole if name.endswith(("values", "shira_weight")))
    layer = key.rpartition(".")[0]
    bad: dict[str, dict[str, torch.Tensor]] = {
        "outside": {key: whole[key] + 1_000_000},
        "below": {key: whole[key] - 1_000_000},
        "longer": {other: torch.cat([whole[other], whole[other]])},
        "nan": {other: whole[other] * float("nan")},
        "layer": {f"base_model.model.nowhere.{key.rpartition('.')[2]}": whole[key]},
        "name": {"weight": whole[key]},
        "shape": {key: whole[key].reshape(1, 1, -1)},
        "float8": {other: whole[other].to(torch.float8_e4m3fn)},
        "float8 positions": {key: whole[key].float().to(torch.float8_e5m2)},
    }
    if kind == "supra":
        a, b = (f"{layer}.supertuning_lora_{x}.weight" for x in "AB")
        bad |= {"rank": {a: whole[a][:1], b: whole[b][:, :1]}, "square": {a: whole[a].T}}
    for name, tensors in bad.items():
        save_file({n: t.clone().contiguous() for n, t in {**whole, **tensors}.items()}, file)
        refused = refusal(folder)
        assert refused.count(str(folder)) == 1, name
    for missing in (key, other):
        save_file({n: t for n, t in whole.items() if n != missing}, file)
        assert "does not fit this model" in refusal(folder)
