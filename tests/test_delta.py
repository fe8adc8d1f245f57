"""A task's change as a file: bit-exact there and back, and refused where it does not belong."""

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from torch import nn

from retouch.errors import UserError
from retouch.sparse import (
    Delta,
    Selection,
    Snapshot,
    SparseIndex,
    by_block,
    difference,
    fingerprint,
    fingerprints,
    in_order,
    join,
    merge,
    read_change_stats,
    read_header,
    select,
)
from retouch.sparse.delta.codec import decode, encode
from retouch.sparse.delta.delta_file import _header_checksum


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
        chosen.scatter(
            parameter, chosen.gather(parameter) + amount * torch.randn(chosen.count).to(parameter)
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


def test_a_digest_reads_again_only_what_may_have_changed(monkeypatch: pytest.MonkeyPatch):
    def digest_of(tensor: torch.Tensor) -> str:
        read.append(tuple(tensor.shape))
        return plain(tensor)

    read: list[tuple[int, ...]] = []
    plain, digests, model = fingerprints._digest_one, fingerprints.Digests(), network()
    state = dict(model.state_dict())
    state["tied"] = state["0.weight"][:3]
    monkeypatch.setattr(fingerprints, "_digest_one", digest_of)
    assert digests(state, ()) == fingerprints.digest(state)
    assert len(read) == 2 * 7
    for name, also in (("2.bias", []), ("0.weight", [(3, 30)])):
        read.clear()
        state[name].add_(1)
        assert digests(state, [name]) == plain_digest(state, plain)
        assert read == [tuple(state[name].shape), *also]
    state["2.weight"].add_(1)
    assert digests(state, ["0.bias"]) != plain_digest(state, plain), "it was not told"
    assert digests(state, state) == plain_digest(state, plain)
    del state["tied"]
    assert digests(state, ()) == plain_digest(state, plain)


def plain_digest(state: dict[str, torch.Tensor], digest_of: Callable[[torch.Tensor], str]) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fingerprints, "_digest_one", digest_of)
        return fingerprints.digest(state)


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
    both = first.compose(second).compose(whole.delta())
    both.save(tmp_path / "both.safetensors")
    Delta.load(tmp_path / "both.safetensors").apply(base)
    assert fingerprint(base) == fingerprint(model)
    with pytest.raises(UserError, match="do not follow each other"):
        second.compose(first)


def test_wrong_weights_are_refused_and_left_alone():
    delta = learn(network())
    other = network(seed=5)
    before = fingerprint(other)
    with pytest.raises(UserError, match=r"belongs to weights \w+, but the model's are"):
        delta.apply(other)
    with pytest.raises(UserError, match="leads to"):
        delta.undo(network())
    assert fingerprint(other) == before


def header_of(content: bytes) -> tuple[dict, bytes]:
    """The header of a delta's file, and what comes behind it."""
    end = 8 + struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8:end]), content[end:]


def with_header(header: dict, payload: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + payload


def edited(content: bytes, change: Callable[[dict], None], honest: bool = False) -> bytes:
    """The same file with another header; `honest`: with a checksum that fits it."""
    outer, payload = header_of(content)
    header = json.loads(outer["__metadata__"]["retouch"])
    change(header)
    if honest:
        header["check"] = _header_checksum({k: v for k, v in header.items() if k != "check"})
    outer["__metadata__"]["retouch"] = json.dumps(header)
    return with_header(outer, payload)


def layout(header: dict) -> dict:
    return header["tensors"]["0.weight"]


HONEST = {
    "of another version": (lambda h: h.update(format="retouch delta 1"), "another version"),
    "no fingerprint": (lambda h: h.pop("before"), "before: Field required"),
    "another field": (lambda h: h.update(extra=1), "extra"),
    "another shape": (lambda h: layout(h).update(shape=[30, 3]), "outside of it|not in it"),
    "less than nothing": (lambda h: layout(h).update(shape=[-50, -30]), "do not fit its shape"),
    "another count": (lambda h: layout(h).update(entries=7), "should have 7 entries"),
    "another type": (lambda h: layout(h).update(dtype="float16"), "cannot be of type float16"),
    "no type": (lambda h: layout(h).update(dtype="nn"), "cannot be of type nn"),
    "another coding": (lambda h: layout(h).update(coding="bits"), "do not fit its shape"),
    "no coding": (lambda h: layout(h).update(coding="zip"), "coding"),
    "a tensor less": (lambda h: h["tensors"].pop("0.weight"), "not in it|does not belong"),
    "a movement of nothing": (lambda h: h["change_stats"][0].update(tensor="x"), "x moved"),
    "another payload": (lambda h: h.update(payload="0" * 64), "content does not match"),
}


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    learn(network()).save(tmp_path / "d.safetensors")
    return (tmp_path / "d.safetensors").read_bytes()


def refused(tmp_path: Path, content: bytes, why: str, header_too: bool = False) -> None:
    path = tmp_path / "odd.safetensors"
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"odd\.safetensors.*({why})"):
        Delta.load(path)
    if header_too:
        with pytest.raises(UserError, match=rf"odd\.safetensors.*({why})"):
            read_header(path)


def test_files_that_were_cut_off_are_refused_by_name(tmp_path: Path, content: bytes):
    for length in (0, 7, 100, len(content) // 2, len(content) - 1):
        refused(tmp_path, content[:length], "is damaged", header_too=True)
    refused(tmp_path, content + b"more", "is damaged", header_too=True)
    with pytest.raises(UserError, match=r"none\.safetensors does not exist"):
        Delta.load(tmp_path / "none.safetensors")
    with pytest.raises(UserError, match="is a folder"):
        read_header(tmp_path)


def test_an_edited_header_is_refused(tmp_path: Path, content: bytes):
    assert edited(content, lambda header: None) != b""
    for edit in (
        lambda h: h["metadata"].update(classes=["another"]),
        lambda h: h.update(after="0" * 64),
        lambda h: h["change_stats"][0].update(change=0.0),
        lambda h: h.pop("check"),
    ):
        refused(tmp_path, edited(content, edit), "header does not match", header_too=True)
    outer, payload = header_of(content)
    outer["__metadata__"]["retouch"] = "[not JSON"
    refused(tmp_path, with_header(outer, payload), "is damaged", header_too=True)


@pytest.mark.parametrize("case", HONEST)
def test_a_header_that_cannot_be_true_is_refused(tmp_path: Path, content: bytes, case: str):
    change, why = HONEST[case]
    refused(tmp_path, edited(content, change, honest=True), why)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_flipped_bit_is_refused(data):
    with TemporaryDirectory() as folder:
        path = Path(folder) / "d.safetensors"
        learn(network()).save(path)
        content = bytearray(path.read_bytes())
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"d\.safetensors"):
            Delta.load(path)


def test_a_delta_that_lies_about_where_it_leads_changes_nothing():
    delta = replace(learn(network()), after="0" * 64)
    model = network()
    before = fingerprint(model)
    with pytest.raises(UserError, match="does not match its header"):
        delta.apply(model)
    assert fingerprint(model) == before


def test_a_foreign_safetensors_file_is_no_delta(tmp_path: Path):
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(3)}, tmp_path / "x.safetensors")
    with pytest.raises(UserError, match="not a delta"):
        Delta.load(tmp_path / "x.safetensors")


def test_the_header_says_what_it_is(tmp_path: Path):
    learn(network()).save(tmp_path / "d.safetensors")
    with safe_open(str(tmp_path / "d.safetensors"), framework="np") as file:
        header = json.loads(file.metadata()["retouch"])
    assert header["metadata"] == {"method": "spu", "rate": 0.1, "classes": ["a", "b"]}
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
    snapshot = Snapshot(model, selection, weights_digest="skipped")
    shake(model, selection)
    snapshot.delta().save(tmp_path / "d.safetensors")
    assert (tmp_path / "d.safetensors").stat().st_size <= limit


def test_a_tensor_of_no_dimensions_and_an_empty_choice(tmp_path: Path):
    model = nn.ParameterDict(
        {"scale": nn.Parameter(torch.tensor(1.0)), "w": nn.Parameter(torch.ones(4))}
    )
    empty = SparseIndex((4,), torch.empty(0, dtype=torch.int64))
    snapshot = Snapshot(model, Selection({"scale": SparseIndex(()), "w": empty}))
    with torch.no_grad():
        model["scale"].fill_(2.0)
    snapshot.delta().save(tmp_path / "d.safetensors")
    Delta.load(tmp_path / "d.safetensors").undo(model)
    assert model["scale"].item() == 1.0


# How far weights moved.


def test_a_header_says_how_far_each_tensor_moved(tmp_path: Path):
    model = network()
    old = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    delta = learn(model)
    delta.save(tmp_path / "d.safetensors")
    new = model.state_dict()
    header = read_header(tmp_path / "d.safetensors")
    assert header.change_stats == list(delta.change_stats) == Delta.load(header.name).change_stats
    assert header.model_size == sum(tensor.numel() for tensor in old.values())
    assert header.entries == 150 + 35
    for found in header.change_stats:
        far = (new[found.tensor] - old[found.tensor]).double()
        far = far[far != 0].abs()
        weights = old[found.tensor].double().square().mean().sqrt().item()
        assert (found.size, found.moved) == (old[found.tensor].numel(), len(far))
        assert found.selected == found.size // 10
        assert found.change == pytest.approx(far.square().mean().sqrt().item(), rel=1e-5)
        assert found.weights == pytest.approx(weights, rel=1e-5)
        edges = [0, *(found.weights * 2.0**k for k in range(-19, 4)), float("inf")]
        assert found.histogram == np.histogram(far.numpy(), edges)[0].tolist()
        assert sum(found.histogram) == found.moved


def test_entries_that_stay_did_not_move_and_odd_numbers_do_no_harm(tmp_path: Path):
    model = nn.ParameterDict(
        {
            "still": nn.Parameter(torch.ones(4)),
            "zero": nn.Parameter(torch.zeros(3)),
            "odd": nn.Parameter(torch.tensor([1.0, -torch.inf, torch.nan, 0.0, 3.0])),
        }
    )
    snapshot = Snapshot(model, Selection.whole(dict(model.named_parameters())))
    with torch.no_grad():
        model["zero"].copy_(torch.tensor([0.0, 5.0, 0.0]))
        model["odd"].copy_(torch.tensor([1.5, torch.inf, 1.0, -0.0, 3.0]))
    snapshot.delta().save(tmp_path / "d.safetensors")
    found = {m.tensor: m for m in read_header(tmp_path / "d.safetensors").change_stats}
    still, zero, odd = found["still"], found["zero"], found["odd"]
    assert (still.selected, still.moved, still.change, sum(still.histogram)) == (4, 0, 0.0, 0)
    assert (zero.moved, zero.change, zero.weights, zero.relative) == (1, 5.0, 0.0, None)
    assert zero.histogram[-1] == 1
    assert (odd.moved, odd.histogram[0], odd.histogram[-1]) == (4, 1, 2)
    assert odd.weights == pytest.approx((10 / 3) ** 0.5, rel=1e-5)


def test_movements_of_several_files_count_moves(tmp_path: Path):
    model = network()
    files = [tmp_path / f"{task}.safetensors" for task in range(3)]
    for task, file in enumerate(files):
        learn(model, seed=task).save(file)
    single = [read_header(file).change_stats for file in files]
    for k, both in enumerate(read_change_stats(files)):
        parts = [found[k] for found in single]
        assert both.tensor == parts[0].tensor
        assert both.size == parts[0].size
        assert both.weights == pytest.approx(parts[0].weights)
        assert both.moved == sum(p.moved for p in parts) == sum(both.histogram)
        energy = sum(p.moved * p.change**2 for p in parts)
        assert both.moved * both.change**2 == pytest.approx(energy)
    blocks = by_block(read_change_stats(files))
    assert [block.tensor for block in blocks] == ["0", "2"]


def test_joined_deltas_tell_only_what_is_known(tmp_path: Path):
    """Two changes of one tensor may cancel out; of tensors that one changes, all is known."""
    model = network()
    first = learn(model, seed=1)
    bias = Snapshot(model, Selection({"0.bias": SparseIndex((50,))}))
    shake(model, Selection({"0.bias": SparseIndex((50,))}))
    third = bias.delta()
    assert first.compose(third).change_stats == [*first.change_stats, *third.change_stats]
    again = learn(model, seed=2)
    joined = first.compose(third).compose(again)
    assert [movement.tensor for movement in joined.change_stats] == ["0.bias"]
    joined.save(tmp_path / "d.safetensors")
    assert [m.tensor for m in read_change_stats([tmp_path / "d.safetensors"])] == ["0.bias"]


# Two checkpoints.


@settings(max_examples=40, deadline=None)
@given(
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.float64]),
    rate=st.sampled_from([0.0, 0.001, 0.1, 0.5, 1.0]),
    seed=st.integers(0, 1000),
)
def test_a_difference_holds_what_differs_and_leads_there_and_back(dtype, rate, seed):
    a, b = network(dtype), network(dtype)
    if rate:
        shake(b, select(scores(b, seed), rate))
    delta = difference(a, b)
    with TemporaryDirectory() as folder:
        delta.save(Path(folder) / "d")
        delta = Delta.load(Path(folder) / "d")
    for name, old in a.state_dict().items():
        differ = (old != b.state_dict()[name]).sum().item()
        assert (delta.changes[name].index.count if name in delta.changes else 0) == differ
    start = fingerprint(a)
    delta.apply(a)
    assert fingerprint(a) == fingerprint(b)
    delta.undo(a)
    assert fingerprint(a) == start


def test_models_of_another_architecture_have_no_difference():
    with pytest.raises(
        UserError, match=r"0\.weight is 50×30 of float32 in the first, and 50×30 of"
    ):
        difference(network(), network(torch.float16))
    with pytest.raises(UserError, match=r"3\.weight is missing in the first"):
        difference(network(), nn.Sequential(*network(), nn.Linear(7, 2)))
    assert not difference(network(), network()).changes


# Order and merging.


def test_deltas_find_their_order():
    model = network()
    deltas = [learn(model, seed=task) for task in range(4)]
    frozen = Delta(deltas[1].after, deltas[1].after, {})
    mixed = [deltas[2], frozen, deltas[0], deltas[3], deltas[1]]
    order = in_order(mixed)
    assert [d.after for d in order] == [
        deltas[0].after,
        *[deltas[1].after] * 2,
        deltas[2].after,
        deltas[3].after,
    ]
    base = network()
    join(mixed).apply(base)
    assert fingerprint(base) == fingerprint(model)
    with pytest.raises(
        UserError, match=rf"at {deltas[2].before[:12]}, .* at {deltas[0].before[:12]}"
    ):
        in_order([deltas[2], deltas[0]])
    with pytest.raises(UserError, match="which the others do not lead to"):
        in_order([deltas[0], replace(frozen, before="x", after="x")])
    with pytest.raises(UserError, match="both begin at"):
        in_order([deltas[0], learn(network(), seed=9)])
    with pytest.raises(UserError, match="are the same change"):
        in_order([deltas[0], deltas[1], deltas[1]])
    circle = [deltas[0], replace(deltas[0], before=deltas[0].after, after=deltas[0].before)]
    assert in_order(circle) == circle


def values(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.double().clone() for name, tensor in model.state_dict().items()}


def forked(count: int, rate: float, dtype: torch.dtype = torch.float32):
    """Deltas that begin at the same weights, what is there before, and what each leads to."""
    deltas, ends = [], []
    for seed in range(count):
        model = network(dtype)
        deltas.append(learn(model, seed=seed, rate=rate))
        ends.append(values(model))
    return deltas, values(network(dtype)), ends


@pytest.mark.parametrize("how", ["sum", "mean", "magmax"])
@pytest.mark.parametrize("rate", [0.1, 0.6, 1.0])
def test_merging_side_by_side(how: str, rate: float):
    deltas, base, ends = forked(3, rate)
    model = network()
    start = fingerprint(model)
    merged = merge(model, deltas, how)
    assert fingerprint(model) == start, "the model is left alone"
    merged.apply(model)
    for name, new in values(model).items():
        far = torch.stack([end[name] - base[name] for end in ends])
        largest = far.gather(0, far.abs().argmax(dim=0, keepdim=True))[0]
        expected = {"sum": far.sum(0), "mean": far.mean(0), "magmax": largest}[how]
        assert torch.allclose(new, base[name] + expected, rtol=1e-6, atol=1e-9)
        once = (far != 0).sum(dim=0) == 1
        if how != "mean":
            value = torch.stack([end[name] for end in ends]).gather(
                0, (far != 0).int().argmax(dim=0, keepdim=True)
            )[0]
            assert torch.equal(new[once], value[once])
    assert {m.tensor for m in merged.change_stats} == set(merged.changes)
    assert merged.metadata["combined"] == how
    assert merged.metadata["classes"] == ["a", "b"]
    assert len(merged.metadata["of"]) == 3


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    size=st.sampled_from([1e-12, 1e-3, 1.0, 1e4]),
)
def test_disjoint_changes_add_up_to_the_bit(seed: int, dtype: torch.dtype, size: float):
    order = torch.randperm(1500, generator=torch.Generator().manual_seed(seed))
    deltas, base = [], network(dtype)
    both = network(dtype)
    for part in (order[:400], order[400:900]):
        chosen = Selection({"0.weight": SparseIndex((50, 30), part.sort().values)})
        model = network(dtype)
        snapshot = Snapshot(model, chosen)
        shake(model, chosen, size)
        deltas.append(snapshot.delta())
        for name, entries in chosen.items():
            entries.scatter(both.get_parameter(name), entries.gather(model.get_parameter(name)))
    for how in ("sum", "magmax"):
        assert merge(base, deltas, how).after == fingerprint(both)


def test_merging_what_follows_each_other():
    model = network()
    steps, moments = [], [values(model)]
    for seed in range(3):
        steps.append(learn(model, seed=seed, rate=0.6))
        moments.append(values(model))
    base = network()
    whole = merge(base, [steps[2], steps[0], steps[1]])
    assert whole.after == steps[2].after
    assert {m.tensor for m in whole.change_stats} == {"0.weight", "2.weight"}
    for how in ("mean", "magmax"):
        merged, fresh = merge(base, steps, how), network()
        merged.apply(fresh)
        for name, new in values(fresh).items():
            far = torch.stack([moments[k + 1][name] - moments[k][name] for k in range(3)])
            largest = far.gather(0, far.abs().argmax(dim=0, keepdim=True))[0]
            expected = far.mean(0) if how == "mean" else largest
            assert torch.allclose(new, moments[0][name] + expected, rtol=1e-6, atol=1e-9)


def test_what_cannot_be_merged_is_refused():
    deltas, _, _ = forked(2, 0.1)
    with pytest.raises(UserError, match="begins at the weights"):
        merge(network(seed=3), deltas)
    with pytest.raises(UserError, match="choose sum, mean, magmax"):
        merge(network(), deltas, "median")
    with pytest.raises(UserError, match="nothing to merge"):
        merge(network(), [])
    after = network()
    deltas[0].apply(after)
    with pytest.raises(UserError, match="both begin at"):
        merge(network(), [*deltas, learn(after, seed=7)])


def test_a_sum_too_large_for_its_type_is_refused():
    deltas = []
    for _ in range(2):
        model = nn.ParameterDict({"w": nn.Parameter(torch.zeros(3, dtype=torch.float16))})
        snapshot = Snapshot(model, Selection({"w": SparseIndex((3,))}))
        with torch.no_grad():
            model["w"].fill_(60_000)
        deltas.append(snapshot.delta())
    start = nn.ParameterDict({"w": nn.Parameter(torch.zeros(3, dtype=torch.float16))})
    with pytest.raises(UserError, match="too large for float16"):
        merge(start, deltas)
    assert merge(start, deltas, "mean").after == deltas[0].after
