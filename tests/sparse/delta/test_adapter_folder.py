"""Adapters of peft, written by peft itself, become deltas."""

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import tiny_clip
from torch import Tensor

from retouch.errors import UserError
from retouch.sparse import fingerprint, read_adapter
from retouch.torchvision_compat import patch_torchvision

patch_torchvision()  # peft imports models of transformers that need it

import peft  # noqa: E402

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


LAYER = "base_model.model.vision_model.encoder.layers.0.mlp.fc1"


def change_tensor(folder: Path, name: str, change: Callable[[Tensor], Tensor]) -> None:
    file = folder / "adapter_model.safetensors"
    tensors = load_file(file)
    tensors[f"{LAYER}.{name}"] = change(tensors[f"{LAYER}.{name}"]).contiguous()
    save_file(tensors, file)


def with_first(tensor: Tensor, value: float) -> Tensor:
    """A copy whose first entry has another value."""
    copy = tensor.clone()
    copy.view(-1)[0] = value
    return copy


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: save_adapter(tmp_path_factory.mktemp(kind), kind)[0] for kind in CONFIGS}


@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
@pytest.mark.parametrize(
    ("kind", "tensor"),
    [
        ("super", "supertuning_values"),
        ("supra", "supertuning_lora_A.weight"),
        ("supra", "supertuning_lora_B.weight"),
        ("shira", "shira_weight"),
    ],
)
def test_numbers_that_are_not_finite_are_refused_by_name(
    kind: str, tensor: str, value: float, adapters: dict[str, Path], tmp_path: Path
):
    folder = copytree(adapters[kind], tmp_path / "a")
    change_tensor(folder, tensor, lambda t: with_first(t, value))
    with pytest.raises(
        UserError, match=rf"1 of .* numbers infinite or NaN.*{tensor}; take another"
    ):
        read_adapter(folder)


@pytest.mark.parametrize(
    ("kind", "tensor", "change"),
    [
        ("super", "supertuning_values", lambda t: t.double().fill_(1e308)),
        ("supra", "supertuning_lora_A.weight", lambda t: t.double().fill_(1e308)),
        ("shira", "shira_weight", lambda t: t.double().fill_(1e308)),
    ],
    ids=["values", "a factor", "SHiRA"],
)
def test_weights_that_would_overflow_are_refused(
    kind: str,
    tensor: str,
    change: Callable[[Tensor], Tensor],
    adapters: dict[str, Path],
    tmp_path: Path,
):
    folder = copytree(adapters[kind], tmp_path / "a")
    change_tensor(folder, tensor, change)
    assert "makes" in refusal(folder)
    assert "infinite or NaN" in refusal(folder)


def test_a_product_of_factors_that_overflows_is_refused(adapters: dict[str, Path], tmp_path: Path):
    folder = copytree(adapters["supra"], tmp_path / "a")
    for factor in "AB":
        change_tensor(folder, f"supertuning_lora_{factor}.weight", lambda t: t.fill_(1e20))
    assert "makes 2,048 of 2,048 weights infinite or NaN" in refusal(folder)


def test_duplicates_whose_sum_overflows_are_refused(adapters: dict[str, Path], tmp_path: Path):
    """Each number is finite and fits the weight; both together do not."""
    folder = copytree(adapters["super"], tmp_path / "a")
    change_tensor(folder, "supertuning_values", lambda t: with_first(t, 3e38))
    assert refusal(folder) == ""
    change_tensor(folder, "supertuning_values", lambda t: t.fill_(3e38))
    change_tensor(folder, "supertuning_indices", lambda t: t.fill_(5))
    assert "makes 1 of 2,048 weights infinite or NaN" in refusal(folder)


@pytest.mark.parametrize("alpha", [float("nan"), float("inf"), 1e308, 10**400, True, "3"], ids=str)
def test_a_scale_that_is_no_number_is_refused(
    alpha: object, adapters: dict[str, Path], tmp_path: Path
):
    folder = copytree(adapters["supra"], tmp_path / "a")
    change_config(folder, lora_alpha=alpha)
    assert "does not fit this model" in refusal(folder)


def test_a_model_with_nan_is_refused(adapters: dict[str, Path]):
    model, name = tiny_clip().model, "vision_model.encoder.layers.0.mlp.fc1.weight"
    model.get_parameter(name).data[0, 0] = torch.nan
    with pytest.raises(UserError, match=f"1 of 2,048 weights infinite or NaN, the first in {name}"):
        read_adapter(adapters["super"]).delta(model)


DTYPES = [
    torch.bool,
    torch.complex64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float16,
    torch.bfloat16,
    torch.float64,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["super", "shira"])
def test_positions_are_integers(
    kind: str, dtype: torch.dtype, adapters: dict[str, Path], tmp_path: Path
):
    folder = copytree(adapters[kind], tmp_path / "a")
    name = "shira_indices" if kind == "shira" else "supertuning_indices"
    change_tensor(folder, name, lambda t: t.to(dtype))
    assert str(dtype).removeprefix("torch.") in refusal(folder)


@pytest.mark.parametrize("row", [2**62, 2**61, -(2**62), -1, 64])
def test_a_row_of_shira_does_not_wrap_around(row: int, adapters: dict[str, Path], tmp_path: Path):
    """Row 2^62 times 32 columns is 0 in 64 bits."""
    folder = copytree(adapters["shira"], tmp_path / "a")
    change_tensor(folder, "shira_indices", lambda t: with_first(t.long(), row))
    assert "a position lies outside of its weight" in refusal(folder)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.uint32, torch.uint64], ids=str)
def test_any_integers_are_positions(dtype: torch.dtype, adapters: dict[str, Path], tmp_path: Path):
    folder = copytree(adapters["shira"], tmp_path / "a")
    expected = read_adapter(folder).delta(tiny_clip().model).after
    change_tensor(folder, "shira_indices", lambda t: t.to(dtype))
    assert read_adapter(folder).delta(tiny_clip().model).after == expected


def test_positions_between_two_entries_are_refused(adapters: dict[str, Path], tmp_path: Path):
    folder = copytree(adapters["shira"], tmp_path / "a")
    change_tensor(folder, "shira_indices", lambda t: t.float() + 0.25)
    assert "whole numbers" in refusal(folder)
