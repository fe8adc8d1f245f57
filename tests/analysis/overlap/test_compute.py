"""The overlap of tasks: by its definition, of neurons, and of a run's deltas."""

from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from backbones import BACKBONES
from safetensors import safe_open
from task_selections import entries, learned_run, random_selection

from retouch.analysis.overlap.compute import compute_overlap, read_overlap
from retouch.sparse import Selection, SparseIndex, locate, read_selection
from retouch.sparse.delta import delta_file
from retouch.sparse.delta.xor_diff import XorDiff

NAME = "vision_model.encoder.layers.0.mlp.fc1.weight"


def test_the_definition_by_hand() -> None:
    tasks = [[0, 1, 2, 3], [2, 3, 4, 5], [3, 9]]
    overlap = compute_overlap(Selection({NAME: entries((4, 5), positions)}) for positions in tasks)
    (layer,) = overlap.layers
    assert (overlap.tasks, layer.tower, layer.name, overlap.fully_selected) == (3, "image", "1", [])
    pairwise = layer.weights
    assert pairwise.shared == [[4, 2, 1], [2, 4, 1], [1, 1, 2]]
    assert (pairwise.overlap(0, 1), pairwise.overlap(0, 2), pairwise.overlap(2, 0)) == (
        0.5,
        0.25,
        0.5,
    )
    assert pairwise.jaccard(0, 1) == 2 / 6
    assert (pairwise.by_chance(0, 2), pairwise.by_chance(2, 0)) == (2 / 20, 4 / 20)
    assert pairwise.mean == pytest.approx((0.5 + 0.25 + 0.5 + 0.25 + 0.5 + 0.5) / 6)
    assert pairwise.chance == pytest.approx((4 + 2 + 4 + 2 + 4 + 4) / 6 / 20)
    assert pairwise.by_tasks == [13, 5, 1, 1]
    assert pairwise.selected_once == 5 / 7


def test_it_equals_the_intersections_of_sets() -> None:
    """Several tensors in a block, sizes that fill no word, a task that lacks a tensor."""
    shapes = {
        "visual.transformer.resblocks.0.mlp.c_fc.weight": (13, 7),
        "visual.transformer.resblocks.0.mlp.c_proj.weight": (7, 13),
        "visual.transformer.resblocks.1.ln_1.bias": (67,),
        "transformer.resblocks.0.mlp.c_fc.weight": (9, 30),
        "text_projection": (6, 6),
    }
    tasks = [random_selection(seed, shapes, 0.3) for seed in range(4)]
    tasks[1] = Selection({name: c for name, c in tasks[1].items() if "ln_1" not in name})
    overlap = compute_overlap(tasks)
    assert [(layer.tower, layer.name) for layer in overlap.layers] == [
        ("image", "1"),
        ("image", "2"),
        ("text", "1"),
        ("text", "out"),
    ]
    for layer in overlap.layers:
        sets = [
            {
                (name, int(k))
                for name in layer.tensors
                if name in task
                for k in task[name].index.tolist()  # type: ignore[union-attr]
            }
            for task in tasks
        ]
        assert layer.weights.shared == [[len(a & b) for b in sets] for a in sets]
        assert layer.weights.size == sum(prod(shapes[name]) for name in layer.tensors)
        assert sum(k * n for k, n in enumerate(layer.weights.by_tasks)) == sum(map(len, sets))
    assert overlap.layers[1].weights.overlap(1, 0) is None
    assert overlap.layers[1].weights.overlap(0, 1) == 0
    assert overlap.layers[1].neurons is None


def test_where_whole_neurons_are_selected_all_of_them_count() -> None:
    """They all tie; a tenth of the layer would be those with the lowest indices."""
    rows = [[0, 1, 10, 11], [2, 3, 10, 11]]
    overlap = compute_overlap(
        Selection({NAME: entries((20, 10), [10 * r + c for r in four for c in range(10)])})
        for four in rows
    )
    neurons = overlap.layers[0].neurons
    assert neurons is not None
    assert neurons.leading.shared == [[4, 2], [2, 4]]
    assert (neurons.leading.mean, neurons.leading.chance) == (0.5, 0.2)


def test_the_overlap_of_neurons() -> None:
    """Two tasks that selected whole neurons and share one of them; a third that selected evenly."""
    rows = [[0, 1], [1, 2], None]
    shape = (20, 10)
    selected = [
        [10 * r + c for r in positions for c in range(10)]
        if positions
        else [10 * r + r % 10 for r in range(20)]
        for positions in rows
    ]
    overlap = compute_overlap(
        Selection({NAME: entries(shape, positions)}) for positions in selected[:2]
    )
    neurons = overlap.layers[0].neurons
    assert neurons is not None
    assert neurons.leading.shared == [[2, 1], [1, 2]]
    assert (neurons.leading.mean, neurons.leading.chance) == (0.5, 0.1)
    assert neurons.touched == [17, 2, 1]
    assert neurons.leading_share == 1.0
    assert 0.1 < neurons.leading_share_by_chance < 0.4
    assert neurons.explained_by_neurons == overlap.layers[0].weights.mean == 0.5
    even = compute_overlap(
        Selection({NAME: entries(shape, positions)}) for positions in (selected[2], selected[0])
    )
    assert even.layers[0].neurons is not None
    assert even.layers[0].neurons.explained_by_neurons == pytest.approx(0.1)


@pytest.mark.slow
def test_a_task_of_vit_b_16_is_stored_in_less_than_6_mb(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    towers = {"vision_model": (3072, 768), "text_model": (2048, 512)}
    files = []
    for task in range(2):
        changes = {}
        for tower, shape in towers.items():
            for block in range(12):
                size = prod(shape)
                selection = np.flatnonzero(rng.random(size, np.float32) < 0.1)
                positions = SparseIndex(shape, torch.from_numpy(selection))
                change = XorDiff(
                    positions, torch.bfloat16, torch.zeros(len(selection), dtype=torch.int16)
                )
                changes[f"{tower}.encoder.layers.{block}.mlp.fc1.weight"] = change
        files.append(tmp_path / f"{task}.safetensors")
        delta_file.write(files[-1], changes, {"before": "a", "after": "b"})
    with safe_open(files[0], "np") as file:
        names = file.keys()
        index_bytes = [file.get_tensor(name).nbytes for name in names if name.endswith(":where")]
    assert len(index_bytes) == 24
    assert 3.5e6 < sum(index_bytes) < 6e6
    overlap = compute_overlap(map(read_selection, files))
    assert len(overlap.layers_of("image")) == len(overlap.layers_of("text")) == 12
    for layer in overlap.layers:
        assert layer.weights.factor == pytest.approx(1, abs=0.03)
        assert layer.weights.chance == pytest.approx(0.1, abs=0.002)
        assert layer.neurons is not None
        assert layer.neurons.leading_share == pytest.approx(
            layer.neurons.leading_share_by_chance, abs=0.003
        )


@pytest.mark.parametrize("name", ["open_clip", "transformers dual encoder", "builtin"])
def test_layers_are_those_of_the_model(name: str) -> None:
    clip = BACKBONES[name]()
    parameters = locate(clip.model)
    shapes = {name: tuple(p.shape) for name, p in parameters.items()}
    overlap = compute_overlap(random_selection(seed, shapes) for seed in range(2))
    for tower in ("image", "text"):
        blocks = clip.blocks[tower]
        assert [layer.name for layer in overlap.layers_of(tower)] == [
            str(i + 1) for i in range(len(blocks))
        ]
        for block, layer in zip(blocks, overlap.layers_of(tower), strict=True):
            assert all(tensor.startswith(f"{block}.") for tensor in layer.tensors)


@pytest.mark.slow
def test_the_overlap_of_a_run(tmp_path: Path) -> None:
    overlap = read_overlap(learned_run(tmp_path / "run"))
    assert (overlap.tasks, overlap.towers, len(overlap.layers)) == (3, ["image", "text"], 4)
    for layer in overlap.layers:
        assert layer.weights.chance == pytest.approx(0.1, abs=0.001)
        assert layer.weights.mean > 1.2 * layer.weights.chance  # similar pictures, similar weights
