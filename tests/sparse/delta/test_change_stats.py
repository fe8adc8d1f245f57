"""How far deltas moved each tensor."""

from pathlib import Path

import numpy as np
import pytest
import torch
from networks import learn, network
from torch import nn

from retouch.sparse import (
    Delta,
    Selection,
    Snapshot,
    by_block,
    read_change_stats,
    read_header,
)


def test_the_header_holds_how_far_each_tensor_moved(tmp_path: Path):
    model = network()
    old = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    delta = learn(model)
    delta.save(tmp_path / "d.safetensors")
    new = model.state_dict()
    header = read_header(tmp_path / "d.safetensors")
    assert header.change_stats == list(delta.change_stats) == Delta.load(header.name).change_stats
    assert header.model_size == sum(tensor.numel() for tensor in old.values())
    assert header.entries == 150 + 35
    for stats in header.change_stats:
        distance = (new[stats.tensor] - old[stats.tensor]).double()
        distance = distance[distance != 0].abs()
        weights = old[stats.tensor].double().square().mean().sqrt().item()
        assert (stats.size, stats.moved) == (old[stats.tensor].numel(), len(distance))
        assert stats.selected == stats.size // 10
        assert stats.change == pytest.approx(distance.square().mean().sqrt().item(), rel=1e-5)
        assert stats.weights == pytest.approx(weights, rel=1e-5)
        edges = [0, *(stats.weights * 2.0**k for k in range(-19, 4)), float("inf")]
        assert stats.histogram == np.histogram(distance.numpy(), edges)[0].tolist()
        assert sum(stats.histogram) == stats.moved


def test_unchanged_zero_and_infinite_entries(tmp_path: Path):
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
    by_name = {s.tensor: s for s in read_header(tmp_path / "d.safetensors").change_stats}
    still, zero, odd = by_name["still"], by_name["zero"], by_name["odd"]
    assert (still.selected, still.moved, still.change, sum(still.histogram)) == (4, 0, 0.0, 0)
    assert (zero.moved, zero.change, zero.weights, zero.relative) == (1, 5.0, 0.0, None)
    assert zero.histogram[-1] == 1
    assert (odd.moved, odd.histogram[0], odd.histogram[-1]) == (4, 1, 2)
    assert odd.weights == pytest.approx((10 / 3) ** 0.5, rel=1e-5)


def test_stats_of_several_files_count_moves(tmp_path: Path):
    model = network()
    files = [tmp_path / f"{task}.safetensors" for task in range(3)]
    for task, file in enumerate(files):
        learn(model, seed=task).save(file)
    single = [read_header(file).change_stats for file in files]
    for k, total in enumerate(read_change_stats(files)):
        parts = [stats[k] for stats in single]
        assert total.tensor == parts[0].tensor
        assert total.size == parts[0].size
        assert total.weights == pytest.approx(parts[0].weights)
        assert total.moved == sum(p.moved for p in parts) == sum(total.histogram)
        energy = sum(p.moved * p.change**2 for p in parts)
        assert total.moved * total.change**2 == pytest.approx(energy)
    blocks = by_block(read_change_stats(files))
    assert [block.tensor for block in blocks] == ["0", "2"]
