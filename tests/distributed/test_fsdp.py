"""Sharded frozen weights: the same result with less memory per rank."""

import copy
import gc
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from backbones import dual, open_clip
from distributed_runs import (
    SETTINGS,
    SendSigterm,
    assert_same_run,
    command,
    float64_clip,
    selected_positions,
    train,
    two_task_stream,
    write_image_folders,
)
from rank_processes import run_ranks, run_ranks_or_errors
from recipes_for_tests import quick
from tiny import images, tiny_clip, tiny_folder, tiny_siglip, tiny_tokenizer
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import retouch
from retouch.clip import Clip, Features, Preprocess
from retouch.clip.hf.model import HuggingFaceClip
from retouch.data import Stream
from retouch.distributed import collectives, fsdp
from retouch.errors import UserError
from retouch.methods import RECIPES, Regularizer, Settings
from retouch.sparse import Delta, fingerprint, locate

pytestmark = pytest.mark.slow

SHARDED = SETTINGS.model_copy(update={"shard": True})


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Five processes of two threads each would mostly wait for each other on two cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def train_sharded(unit: str, folder: Path | None = None, **options: Any) -> dict[str, Any]:
    options = {"settings": SHARDED, "changes": {"update__unit": unit}, "out": folder, **options}
    return {**train("spu", **options), "traffic": dict(collectives.traffic)}


@pytest.mark.parametrize("unit", ["weight", "neuron"])
def test_the_result_equals_that_with_whole_weights(unit: str, tmp_path: Path):
    single = train_sharded(unit, tmp_path / "1", settings=SETTINGS)
    ranks = run_ranks(3, train_sharded, unit, tmp_path / "3")
    assert_same_run(single, ranks, 1e-12)
    assert selected_positions(tmp_path / "3") == selected_positions(tmp_path / "1")
    assert_only_selected_entries_moved(tmp_path / "3", ranks[0]["weights"])


def test_ranks_with_different_numbers_of_micro_batches():
    # Of 14 images, the ranks have 5, 5 and 4; of 4 prompts 2, 1 and 1.
    settings = SETTINGS.model_copy(update={"micro_batch": 1, "epochs": 1})
    single = train_sharded("weight", settings=settings)
    assert_same_run(single, run_ranks(3, train_in_micro_batches, settings), 1e-12)


def train_in_micro_batches(settings: Settings) -> dict[str, Any]:
    return train_sharded("weight", settings=settings.model_copy(update={"shard": True}))


def assert_only_selected_entries_moved(folder: Path, weights: dict[str, Any]) -> None:
    """The stored deltas lead to these weights, and entries outside of them are bit-identical."""
    clip = float64_clip()
    base = {name: tensor.clone() for name, tensor in clip.model.state_dict().items()}
    for file in sorted((folder / "deltas").iterdir()):
        Delta.load(file).apply(clip.model)
    for name, tensor in clip.model.state_dict().items():
        np.testing.assert_array_equal(weights[name], tensor.numpy())
        unselected = np.ones(tensor.numel(), bool)
        for task, index in selected_positions(folder).items():
            unselected[index if task.split()[1] == name else []] = False
        after, before = weights[name].reshape(-1), base[name].numpy().reshape(-1)
        np.testing.assert_array_equal(after[unselected], before[unselected])
        assert unselected.all() or (after[~unselected] != before[~unselected]).any()


class RecordsShards(Regularizer):
    """Records in every step what this rank holds of the model; adds nothing to the loss."""

    def begin(self, context: Any) -> None:
        RECORD.clear()
        RECORD["model"] = context.clip.model

    def loss(self, features: Features) -> Tensor | None:
        parameters = RECORD["model"].named_parameters()
        RECORD["entries"] = {name: local(p).numel() for name, p in parameters}
        return None

    def end(self, context: Any) -> None:
        shards = [o for o in gc.get_objects() if isinstance(o, DTensor)]
        storages = [local(shard).untyped_storage() for shard in shards]
        RECORD["bytes_at_end"] = sum(storage.nbytes() for storage in storages)


RECORD: dict[str, Any] = {}


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def entries_on_this_rank(clip: Clip | None = None) -> tuple[dict[str, int], int, bool]:
    """What a rank holds in a step, the expected size, and whether shards are freed at the end."""
    clip = clip or float64_clip()
    shardable = fsdp.shardable_parameters(clip.model, clip.blocks.values(), locate(clip.model))
    expected = (
        fsdp.bytes_per_rank(clip.model, shardable, collectives.world_size())
        // clip.logit_scale.element_size()
    )
    method = quick("spu").model_copy(update={"regularizer": RecordsShards()})
    retouch.teach(clip, two_task_stream(), method, settings=SHARDED)
    whole = not any(isinstance(t, DTensor) for t in clip.model.state_dict().values())
    return RECORD["entries"], expected, whole and RECORD["bytes_at_end"] == 0


def test_each_rank_holds_its_shard():
    clip = float64_clip()
    shardable = fsdp.shardable_parameters(clip.model, clip.blocks.values(), locate(clip.model))
    assert len(shardable) == 4 * 5, (
        "in four blocks: query, key, value, out and the second MLP layer"
    )
    sizes = {name: p.numel() for name, p in clip.model.named_parameters()}
    ranks = run_ranks(3, entries_on_this_rank)
    for name, size in sizes.items():
        parts = [held[name] for held, _, _ in ranks]
        assert sum(parts) == size if name in shardable else parts == [size] * 3
    for held, expected, whole in ranks:
        assert sum(held.values()) <= expected < 0.65 * clip.size
        assert whole
    assert sum(ranks[0][0].values()) == ranks[0][1], "the first shard is the largest"


def measure_traffic(settings: Settings) -> dict[str, int]:
    return dict(train_sharded("weight", settings=settings)["traffic"])


def test_traffic_of_a_run():
    """Every block is gathered in each forward and backward pass; gradients are sent as before."""
    whole, sharded = (
        run_ranks(2, measure_traffic, settings)[0] for settings in (SETTINGS, SHARDED)
    )
    clip = float64_clip()
    shardable = fsdp.shardable_parameters(clip.model, clip.blocks.values(), locate(clip.model))
    passes = 2 * (4 + 1)  # two tasks of four steps and a scoring batch
    assert sharded.pop("weights") == passes * 2 * sum(p.nbytes for p in shardable.values()) // 2
    assert sharded.pop("joining") == 2 * sum(p.nbytes for p in shardable.values()) // 2
    assert whole == sharded


BACKBONES = {
    "transformers": tiny_clip,
    "SigLIP": tiny_siglip,
    "BERT": dual,
    "open_clip": open_clip,
}


def fingerprints_and_traffic(backbone: str, precision: str) -> tuple[str, str, int]:
    """Fingerprints after training with whole and sharded weights, and bytes of weights sent."""
    stream = Stream.split(images("train", 4, 4), images("test", 4, 3), tasks=1)
    trained = []
    for shard in (False, True):
        clip, changes = BACKBONES[backbone](), {"precision": precision, "shard": shard, "epochs": 1}
        settings = SETTINGS.model_copy(update=changes)
        retouch.teach(clip, stream, quick("spu"), settings=settings, evaluate_each_task=False)
        trained.append(fingerprint(clip.model))
    return trained[0], trained[1], collectives.traffic["weights"]


@pytest.mark.parametrize(
    ("backbone", "precision"),
    [
        ("transformers", "bf16"),
        ("SigLIP", "bf16"),
        ("BERT", "fp32"),
        ("open_clip", "fp32"),
    ],
)
def test_the_result_is_bit_identical_in_both_precisions(backbone: str, precision: str):
    clip, ranks = BACKBONES[backbone](), run_ranks(2, fingerprints_and_traffic, backbone, precision)
    assert ranks[0] == ranks[1]
    assert ranks[0][0] == ranks[0][1] != fingerprint(clip.model)
    shardable = fsdp.shardable_parameters(clip.model, clip.blocks.values(), locate(clip.model))
    bytes_per_entry = {"fp32": 4, "bf16": 2}[precision]  # bfloat16 is sent as such
    passes = 2 + 1  # in each, a rank sends half of the weights twice
    assert ranks[0][2] == passes * bytes_per_entry * sum(p.numel() for p in shardable.values())


def shard_few_rows() -> tuple[list[int], bool, bool]:
    """Of a block with 4 and 6 rows: what a rank holds, and whether gradient and weights agree."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 6)))
    shardable = fsdp.shardable_parameters(model, [["0"]], ["0.0.weight"])
    first, inputs = model.get_parameter("0.0.weight"), torch.randn(3, 5)
    before = [p.detach().clone() for p in model.parameters()]
    (expected,) = torch.autograd.grad(model(inputs).square().sum(), first)
    with fsdp.sharded(model, [["0"]], shardable):
        held = [local(p).numel() for p in model.parameters()]
        (gradient,) = torch.autograd.grad(model(inputs).square().sum(), first)
    restored = all(map(torch.equal, model.parameters(), before))
    return held, torch.equal(expected, gradient), restored


def test_more_ranks_than_rows():
    ranks = run_ranks(5, shard_few_rows)
    assert [held for held, _, _ in ranks] == [[20, 4, rows * 4, 6] for rows in (2, 2, 2, 0, 0)]
    assert all(equal and restored for _, equal, restored in ranks)


@cache
def many_layers() -> nn.Module:
    """A third of the layers of a ViT-H/14, tiny, of widths that three ranks do not share evenly."""
    import transformers

    shape = {"num_attention_heads": 4, "projection_dim": 16}
    text = {"hidden_size": 16, "intermediate_size": 64, "num_hidden_layers": 8}
    words = {"vocab_size": 64, "max_position_embeddings": 12, "eos_token_id": 3}
    vision = {"hidden_size": 20, "intermediate_size": 80, "num_hidden_layers": 11}
    torch.manual_seed(0)
    config = transformers.CLIPConfig(
        text_config={**shape, **text, **words, "bos_token_id": 1, "pad_token_id": 0},
        vision_config={**shape, **vision, "image_size": 28, "patch_size": 14},
        projection_dim=16,
    )
    return transformers.CLIPModel(config)


def train_many_layers(shard: bool) -> str:
    model = copy.deepcopy(many_layers())
    clip = HuggingFaceClip(model, tiny_tokenizer(), Preprocess(size=(28, 28)), "tiny H/14")
    stream = Stream.split(images("train", 4, 7, 28), images("test", 4, 1, 28), tasks=1)
    settings = SETTINGS.model_copy(update={"batch": 28, "epochs": 1, "shard": shard})
    retouch.teach(clip, stream, quick("spu"), settings=settings, evaluate_each_task=False)
    return fingerprint(clip.model)


def train_many_layers_both_ways() -> list[str]:
    return [train_many_layers(shard) for shard in (False, True)]


def test_many_layers_on_three_ranks():
    many_layers()  # built once, before the ranks fork
    ranks = run_ranks(3, train_many_layers_both_ways)
    assert len({weights for both in ranks for weights in both}) == 1


def train_until_sigterm(folder: Path, after: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        train_sharded("weight", folder, callback=SendSigterm(after))


@cache
def uninterrupted() -> dict[str, Any]:
    return train("spu")


@pytest.mark.parametrize("then_ranks", [1, 3])
def test_a_run_continues_with_whole_weights_and_with_other_shards(then_ranks: int, tmp_path: Path):
    expected = uninterrupted()
    run_ranks(2, train_until_sigterm, tmp_path, 6)
    assert (tmp_path / "checkpoint.safetensors").exists()
    if then_ranks == 1:
        assert_same_run(expected, [train("spu", out=tmp_path)], 1e-7)
    else:
        assert_same_run(expected, run_ranks(then_ranks, continue_sharded, tmp_path), 1e-7)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 8


def continue_sharded(folder: Path) -> dict[str, Any]:
    return train_sharded("weight", folder)


def train_while_rank_1_dies() -> str:
    """Rank 1 dies in a step; the error of rank 0."""

    class Dies(Regularizer):
        def loss(self, features: Features) -> Tensor | None:
            if collectives.rank() == 1:
                os._exit(1)
            return None

    method = quick("spu").model_copy(update={"regularizer": Dies()})
    try:
        retouch.teach(tiny_clip(), two_task_stream(), method, settings=SHARDED)
    except collectives.RankLost as why:
        return str(why)
    raise AssertionError


def test_a_rank_that_dies_ends_the_others_with_a_message():
    results = run_ranks_or_errors(2, train_while_rank_1_dies)
    assert "another process of this job ended" in results[0]


def refusal(name: str, **settings: Any) -> str:
    with pytest.raises(UserError) as why:
        retouch.teach(
            tiny_clip(), two_task_stream(), name, settings=Settings(shard=True, **settings)
        )
    return str(why.value)


def refusals() -> list[str]:
    options: list[dict[str, Any]] = [
        {"name": "er"},
        {"name": "spu-code"},
        {"name": "spu", "compile": True},
    ]
    return [refusal(**option) for option in options]


def test_what_cannot_be_sharded_is_refused():
    alone = refusal("spu")
    assert "torchrun" in alone
    everything, code, compiled = run_ranks(2, refusals)[0]
    shardable = ", ".join(name for name, method in RECIPES.items() if method.shards)
    ours = "spu, spu+, spu+no-images, text-first, spu-bounded"
    assert shardable == f"{ours}, random, magnitude, piggyback, mask"
    assert shardable in everything
    assert "er cannot" in everything
    assert "spu-code cannot" in code
    assert "compiling" in compiled


def test_nothing_to_shard():
    messages = run_ranks(2, _update_everything)
    assert all(
        "every matrix in the model's blocks may be updated" in message for message in messages
    )


def _update_everything() -> str:
    with pytest.raises(UserError) as why:
        retouch.teach(
            tiny_clip(),
            two_task_stream(),
            quick("spu", update__where="everything"),
            settings=SHARDED,
        )
    return str(why.value)


def test_command_line(tmp_path: Path):
    data, model = write_image_folders(tmp_path / "data"), str(tiny_folder(tmp_path / "model"))
    words = ["learn", data, "--model", model, "--out", str(tmp_path / "run"), "--method", "spu"]
    words.append("--shard")
    code, _, stderr = command(*words)
    assert code == 1
    assert stderr.startswith("error: sharding divides")  # before anything is read
    assert "torchrun" in stderr
    shown = run_ranks_or_errors(2, command, *words, "--dry-run", "--epochs", "1", join=False)
    assert [code for code, _, _ in shown] == [0, 0], shown
    assert "Each process holds 127 kB of the 177 kB of weights" in shown[0][1]
