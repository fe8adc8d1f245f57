"""Collectives between ranks."""

import time
from typing import Any

import pytest
import torch
from rank_processes import run_ranks, run_ranks_or_errors

from retouch.distributed import collectives
from retouch.errors import UserError


def test_rank_slices_cover_everything(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(collectives, "world_size", lambda: 3)
    for count in range(10):
        slices = [collectives.rank_slice(count, rank) for rank in range(3)]
        assert [i for part in slices for i in range(count)[part]] == list(range(count))
        sizes = [part.stop - part.start for part in slices]
        assert max(sizes) == collectives.largest_rank_slice(count)
        assert max(sizes) - min(sizes) <= 1


def all_collectives() -> dict[str, Any]:
    rank = collectives.rank()
    rows = torch.arange(7.0)[collectives.rank_slice(7)]
    tensors = [torch.full((3,), float(rank)), torch.ones(2, 2, dtype=torch.float64)]
    collectives.all_reduce(tensors)
    received = collectives.broadcast_tensors(
        {"a": torch.arange(3), "b": torch.eye(2)} if rank == 0 else {}
    )
    return {
        "gather": collectives.gather(rows[:, None], 7).flatten().tolist(),
        "all_reduce": [tensor.flatten().tolist() for tensor in tensors],
        "broadcast_tensors": {name: tensor.tolist() for name, tensor in received.items()},
        "broadcast_str": collectives.broadcast_str(lambda: f"from {rank}"),
        "any_rank": (collectives.any_rank(rank == 2), collectives.any_rank(False)),
        "all_reduce_scalar": collectives.all_reduce_scalar(rank),
        "reduce_scatter": collectives.reduce_scatter(torch.ones(7, 1) * (rank + 1))
        .flatten()
        .tolist(),
    }


@pytest.mark.slow
def test_every_collective_on_three_ranks():
    for rank, results in enumerate(run_ranks(3, all_collectives)):
        assert results == {
            "gather": [0, 1, 2, 3, 4, 5, 6],
            "all_reduce": [[3, 3, 3], [3, 3, 3, 3]],
            "broadcast_tensors": {"a": [0, 1, 2], "b": [[1, 0], [0, 1]]},
            "broadcast_str": "from 0",
            "any_rank": (True, False),
            "all_reduce_scalar": 3,
            "reduce_scatter": [6] * (3 if rank == 0 else 2),
        }


def user_error_on_rank_0() -> tuple[str, str, bool]:
    def fail() -> str:
        raise UserError("there is no such model; take another", argument="model")

    try:
        raise AssertionError(collectives.broadcast_str(fail))
    except UserError as why:
        return why.message, why.argument, collectives.reports_error(str(why))


@pytest.mark.slow
def test_an_error_on_rank_0_is_raised_on_all_and_reported_once():
    results = sorted(run_ranks(3, user_error_on_rank_0))
    error = "there is no such model; take another", "model"
    assert results == [(*error, False), (*error, False), (*error, True)]


def same_error_later_on_rank_1() -> None:
    if not collectives.is_rank0():
        time.sleep(0.5)
    raise UserError(str(collectives.reports_error("the same error")))


@pytest.mark.slow
def test_rank_0_waits_for_others_with_the_same_error():
    errors = run_ranks_or_errors(2, same_error_later_on_rank_1)
    assert [str(error) for error in errors] == ["True", "False"]
