"""Digests of weights."""

from collections.abc import Callable

import pytest
import torch
from networks import network

from retouch.sparse import fingerprints


def test_digests_read_again_only_what_may_have_changed(monkeypatch: pytest.MonkeyPatch):
    def recording_digest(tensor: torch.Tensor) -> str:
        read.append(tuple(tensor.shape))
        return original(tensor)

    read: list[tuple[int, ...]] = []
    original, digests = fingerprints._digest_one, fingerprints.Digests()
    state = dict(network().state_dict())
    state["tied"] = state["0.weight"][:3]
    monkeypatch.setattr(fingerprints, "_digest_one", recording_digest)
    assert digests(state, ()) == fingerprints.digest(state)
    assert len(read) == 2 * 7
    for name, tied in (("2.bias", []), ("0.weight", [(3, 30)])):
        read.clear()
        state[name].add_(1)
        assert digests(state, [name]) == full_digest(state, original)
        assert read == [tuple(state[name].shape), *tied]
    state["2.weight"].add_(1)
    assert digests(state, ["0.bias"]) != full_digest(state, original), "it is not in the list"
    assert digests(state, state) == full_digest(state, original)
    del state["tied"]
    assert digests(state, ()) == full_digest(state, original)


def full_digest(state: dict[str, torch.Tensor], digest_of: Callable[[torch.Tensor], str]) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fingerprints, "_digest_one", digest_of)
        return fingerprints.digest(state)
