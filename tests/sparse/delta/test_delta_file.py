"""Delta files: what is damaged or edited is refused."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import learn, network, perturb
from safetensors import safe_open
from tiny import tiny_clip
from torch import nn

from retouch.errors import UserError
from retouch.files import checksummed
from retouch.sparse import Delta, Snapshot, fingerprint, locate, read_header, read_selection, select


def header_of(content: bytes) -> tuple[dict, bytes]:
    """The header of a safetensors file, and what follows it."""
    end = 8 + struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8:end]), content[end:]


def with_header(header: dict, payload: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + payload


def edited(content: bytes, edit: Callable[[dict], None], valid_checksum: bool = False) -> bytes:
    """The same file with another header, with or without a checksum that matches it."""
    outer, payload = header_of(content)
    header = json.loads(outer["__metadata__"]["retouch"])
    edit(header)
    if valid_checksum:
        header = checksummed.seal(header)
    outer["__metadata__"]["retouch"] = json.dumps(header)
    return with_header(outer, payload)


def layout(header: dict) -> dict:
    return header["tensors"]["0.weight"]


IMPOSSIBLE_HEADERS = {
    "of another version": (lambda h: h.update(format="retouch delta 1"), "another version"),
    "no fingerprint": (lambda h: h.pop("before"), "before: Field required"),
    "another field": (lambda h: h.update(extra=1), "extra"),
    "another shape": (lambda h: layout(h).update(shape=[30, 3]), "outside of it|not in it"),
    "negative shape": (lambda h: layout(h).update(shape=[-50, -30]), "shape.0=-50"),
    "another count": (lambda h: layout(h).update(entries=7), "should have 7 entries"),
    "another type": (lambda h: layout(h).update(dtype="float16"), "cannot be of type float16"),
    "no type": (lambda h: layout(h).update(dtype="nn"), "cannot be of type nn"),
    "another coding": (lambda h: layout(h).update(coding="bits"), "do not fit its shape"),
    "no coding": (lambda h: layout(h).update(coding="zip"), "coding"),
    "missing tensor": (lambda h: h["tensors"].pop("0.weight"), "not in it|does not belong"),
    "stats of an unknown tensor": (lambda h: h["change_stats"][0].update(tensor="x"), "x moved"),
    "classes that are no list": (lambda h: h["metadata"].update(classes=5), "classes=5"),
    "parts that are no list": (lambda h: h["metadata"].update(of=5), "of=5"),
    "more moved than there are": (lambda h: h["change_stats"][0].update(moved=10**9), "contradict"),
    "another digest": (lambda h: h.update(content="0" * 64), "content does not match"),
}


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    learn(network()).save(tmp_path / "d.safetensors")
    return (tmp_path / "d.safetensors").read_bytes()


def assert_refused(tmp_path: Path, content: bytes, message: str, header_too: bool = False) -> None:
    path = tmp_path / "odd.safetensors"
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"odd\.safetensors.*({message})"):
        Delta.load(path)
    if header_too:
        with pytest.raises(UserError, match=rf"odd\.safetensors.*({message})"):
            read_header(path)


def test_a_truncated_file_is_refused(tmp_path: Path, content: bytes):
    for length in (0, 7, 100, len(content) // 2, len(content) - 1):
        assert_refused(tmp_path, content[:length], "is damaged", header_too=True)
    assert_refused(tmp_path, content + b"more", "is damaged", header_too=True)
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
        lambda h: h.pop("checksum"),
    ):
        assert_refused(
            tmp_path,
            edited(content, edit),
            "content does not match its checksum|has no checksum",
            header_too=True,
        )
    outer, payload = header_of(content)
    for hostile in ("[not JSON", "[" * 100_000, "9" * 5_000, '{"before": NaN}', "5", "{}"):
        outer["__metadata__"]["retouch"] = hostile
        assert_refused(tmp_path, with_header(outer, payload), "is damaged", header_too=True)


@pytest.mark.parametrize("case", IMPOSSIBLE_HEADERS)
def test_an_impossible_header_is_refused(tmp_path: Path, content: bytes, case: str):
    edit, message = IMPOSSIBLE_HEADERS[case]
    assert_refused(tmp_path, edited(content, edit, valid_checksum=True), message)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_flipped_bit_is_refused(data):
    with TemporaryDirectory() as folder:
        path = Path(folder) / "d.safetensors"
        learn(network()).save(path)
        content = bytearray(path.read_bytes())
        position = data.draw(st.integers(0, len(content) - 1))
        content[position] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"d\.safetensors"):
            Delta.load(path)


def test_another_safetensors_file_is_not_a_delta(tmp_path: Path):
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(3)}, tmp_path / "x.safetensors")
    with pytest.raises(UserError, match="not a delta"):
        Delta.load(tmp_path / "x.safetensors")


def test_the_header_holds_metadata_and_fingerprint(tmp_path: Path):
    learn(network()).save(tmp_path / "d.safetensors")
    with safe_open(str(tmp_path / "d.safetensors"), framework="np") as file:
        header = json.loads(file.metadata()["retouch"])
    assert header["metadata"] == {"method": "spu", "rate": 0.1, "classes": ["a", "b"]}
    assert header["before"] == fingerprint(network())


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 22e6), (torch.float16, 14e6)])
def test_size_for_vit_b_16(tmp_path: Path, dtype: torch.dtype, limit: float):
    """A third of its first MLP layers, with selections clustered in rows as real ones are."""
    shapes = {f"v{i}": (3072, 768) for i in range(4)} | {f"t{i}": (2048, 512) for i in range(4)}
    model = nn.ParameterDict(
        {n: nn.Parameter(torch.zeros(s, dtype=dtype)) for n, s in shapes.items()}
    )
    scores = {n: torch.rand(s) * torch.rand(s[0], 1) ** 4 for n, s in shapes.items()}
    selection = select(scores, 0.10)
    assert selection.count == 4 * (235_929 + 104_857)
    snapshot = Snapshot(model, selection, weights_digest="skipped")
    perturb(model, selection)
    snapshot.delta().save(tmp_path / "d.safetensors")
    assert (tmp_path / "d.safetensors").stat().st_size <= limit / 3


def test_the_selection_is_read_from_a_delta_and_damage_is_noticed(tmp_path: Path) -> None:
    model = tiny_clip().model
    selection = select({name: p.detach().abs() for name, p in locate(model).items()}, 0.1)
    file = tmp_path / "d.safetensors"
    Snapshot(model, selection).delta().save(file)
    stored = read_selection(file)
    assert list(stored) == list(selection)
    assert all(torch.equal(stored[n].index, selection[n].index) for n in selection)
    data = bytearray(file.read_bytes())
    data[-3] ^= 1  # in the last tensor's positions or change: the counts stay the same
    file.write_bytes(data)
    with pytest.raises(UserError, match=r"d\.safetensors is damaged"):
        read_selection(file)
    file.write_bytes(data[: len(data) // 2])
    with pytest.raises(UserError, match=r"d\.safetensors is damaged"):
        read_selection(file)
