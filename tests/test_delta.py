"""A task's change as a file: bit-exact there and back, and refused where it does not belong."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from torch import nn

from retouch.errors import UserError
from retouch.sparse import Chosen, Delta, Selection, Snapshot, fingerprint, select
from retouch.sparse.codec import decode, encode


@settings(max_examples=100, deadline=None)
@given(size=st.integers(1, 5000), data=st.data())
def test_positions_come_back_from_their_code(size, data):
    count = data.draw(st.integers(0, size))
    seed = data.draw(st.integers(0, 1000))
    index = np.sort(np.random.default_rng(seed).permutation(size)[:count])
    coding, code = encode(index, size)
    assert np.array_equal(decode(coding, code, size), index)
    assert len(code) <= min(size // 8 + 1, count + size // 255 + 1) + count // 8


def test_far_gaps_and_the_ends_of_the_row():
    for index in ([0], [999_999], [254, 255, 256, 510, 511, 766, 100_000], []):
        positions = np.array(index, np.int64)
        assert decode(*encode(positions, 1_000_000), 1_000_000).tolist() == index
    assert decode(*encode(None, 10), 10) is None


def network(dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(30, 50), nn.LayerNorm(50), nn.Linear(50, 7)).to(dtype)


def scores(model: nn.Module, seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return {n: torch.rand(p.shape) for n, p in model.named_parameters() if p.ndim == 2}


@torch.no_grad()
def shake(model: nn.Module, selection: Selection, amount: float = 0.1) -> None:
    for name, chosen in selection.items():
        parameter = model.get_parameter(name)
        chosen.put(
            parameter, chosen.take(parameter) + amount * torch.randn(chosen.count).to(parameter)
        )


def learn(model: nn.Module, seed: int = 1, rate: float = 0.1) -> Delta:
    selection = select(scores(model, seed), rate)
    snapshot = Snapshot(model, selection)
    shake(model, selection)
    return snapshot.delta({"method": "spu", "rate": rate, "classes": ["a", "b"]})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 1.0])
def test_apply_and_undo_are_bit_exact(tmp_path: Path, dtype: torch.dtype, rate: float):
    model = network(dtype)
    start = fingerprint(model)
    learn(model, rate=rate).save(tmp_path / "a.safetensors")
    end = fingerprint(model)
    assert start != end
    delta = Delta.load(tmp_path / "a.safetensors")
    delta.undo(model)
    assert fingerprint(model) == start
    delta.apply(model)
    assert fingerprint(model) == end


def test_base_and_deltas_in_order_give_the_model_after_the_last_task(tmp_path: Path):
    model, base = network(), network()
    for task in range(4):
        learn(model, seed=task).save(tmp_path / f"{task}.safetensors")
    deltas = [Delta.load(tmp_path / f"{task}.safetensors") for task in range(4)]
    states = [fingerprint(base)]
    for delta in deltas:
        delta.apply(base)
        states.append(fingerprint(base))
    assert states[-1] == fingerprint(model)
    for delta, state in zip(reversed(deltas), reversed(states[:-1]), strict=True):
        delta.undo(base)
        assert fingerprint(base) == state


def test_composed_deltas_do_the_same_at_once(tmp_path: Path):
    model, base = network(), network()
    first, second = learn(model, seed=1), learn(model, seed=2)
    whole = Snapshot(model, Selection.whole(dict(model.named_parameters())))
    shake(model, Selection.whole(dict(model.named_parameters())))
    both = first.then(second).then(whole.delta())
    both.save(tmp_path / "both.safetensors")
    Delta.load(tmp_path / "both.safetensors").apply(base)
    assert fingerprint(base) == fingerprint(model)
    with pytest.raises(UserError, match="do not follow each other"):
        second.then(first)


def test_wrong_weights_are_refused_and_left_alone():
    delta = learn(network())
    other = network(seed=5)
    before = fingerprint(other)
    with pytest.raises(UserError, match=r"belongs to weights \w+, but the model's are"):
        delta.apply(other)
    with pytest.raises(UserError, match="leads to"):
        delta.undo(network())
    assert fingerprint(other) == before


def test_damaged_files_are_refused_by_name(tmp_path: Path):
    path = tmp_path / "d.safetensors"
    learn(network()).save(path)
    content = path.read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=r"cut.safetensors is damaged"):
        Delta.load(tmp_path / "cut.safetensors")
    with pytest.raises(UserError, match="does not exist"):
        Delta.load(tmp_path / "none.safetensors")
    flipped = bytearray(content)
    flipped[-1] ^= 1
    (tmp_path / "edited.safetensors").write_bytes(flipped)
    model = network()
    before = fingerprint(model)
    with pytest.raises(UserError, match=r"does not match its header|does not fit"):
        Delta.load(tmp_path / "edited.safetensors").apply(model)
    assert fingerprint(model) == before


def test_a_foreign_safetensors_file_is_no_delta(tmp_path: Path):
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(3)}, tmp_path / "x.safetensors")
    with pytest.raises(UserError, match="no delta"):
        Delta.load(tmp_path / "x.safetensors")


def test_the_header_says_what_it_is(tmp_path: Path):
    learn(network()).save(tmp_path / "d.safetensors")
    with safe_open(str(tmp_path / "d.safetensors"), framework="np") as file:
        header = json.loads(file.metadata()["retouch"])
    assert header["about"] == {"method": "spu", "rate": 0.1, "classes": ["a", "b"]}
    assert header["before"] == fingerprint(network())


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 22e6), (torch.float16, 14e6)])
def test_size_for_vit_b_16(tmp_path: Path, dtype: torch.dtype, limit: float):
    """24 first MLP layers, the rows clustered as real selections are: some rows chosen far more."""
    shapes = {f"v{i}": (3072, 768) for i in range(12)} | {f"t{i}": (2048, 512) for i in range(12)}
    model = nn.ParameterDict(
        {n: nn.Parameter(torch.zeros(s, dtype=dtype)) for n, s in shapes.items()}
    )
    busy = {n: torch.rand(s) * torch.rand(s[0], 1) ** 4 for n, s in shapes.items()}
    selection = select(busy, 0.10)
    assert selection.count == 12 * (235_929 + 104_857)
    snapshot = Snapshot(model, selection, at="skipped")
    shake(model, selection)
    snapshot.delta().save(tmp_path / "d.safetensors")
    assert (tmp_path / "d.safetensors").stat().st_size <= limit


def test_a_tensor_of_no_dimensions_and_an_empty_choice(tmp_path: Path):
    model = nn.ParameterDict(
        {"scale": nn.Parameter(torch.tensor(1.0)), "w": nn.Parameter(torch.ones(4))}
    )
    empty = Chosen((4,), torch.empty(0, dtype=torch.int64))
    snapshot = Snapshot(model, Selection({"scale": Chosen(()), "w": empty}))
    with torch.no_grad():
        model["scale"].fill_(2.0)
    snapshot.delta().save(tmp_path / "d.safetensors")
    Delta.load(tmp_path / "d.safetensors").undo(model)
    assert model["scale"].item() == 1.0
