"""Frozen weights that processes share: the same result, from a part of the memory."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from backbones import dual, open_clip
from recipes_for_tests import quick
from test_together import (
    BRIEF,
    Stop,
    a_stream,
    command,
    exact_clip,
    learned,
    pictures,
    same,
    selections,
)
from tiny import images, tiny_clip, tiny_folder, tiny_tokenizer
from together import together, together_or_lost
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

import retouch
from retouch.clip import Clip, Features, Preprocess
from retouch.clip.hf import HuggingFaceClip
from retouch.data import Stream
from retouch.distributed import collectives, fsdp
from retouch.errors import UserError
from retouch.methods import RECIPES, Regularizer, Settings
from retouch.sparse import Delta, fingerprint, locate

SHARD = BRIEF.model_copy(update={"shard": True})


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Five processes of two threads each, on two cores, would mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def sharded(unit: str, folder: Path | None = None, **options: Any) -> dict[str, Any]:
    given = {"settings": SHARD, "changes": {"trains__unit": unit}, "out": folder, **options}
    return {**learned("spu", **given), "sent": dict(collectives.traffic)}


@pytest.mark.parametrize("unit", ["weight", "neuron"])
def test_the_same_as_with_whole_weights(unit: str, tmp_path: Path):
    one = sharded(unit, tmp_path / "1", settings=BRIEF)
    for world in (2, 3):
        many = together(world, sharded, unit, tmp_path / str(world))
        same(one, many, 1e-12)
        assert selections(tmp_path / str(world)) == selections(tmp_path / "1")
        only_the_selected_moved(tmp_path / str(world), many[0]["weights"])


def test_micro_batches_of_which_some_processes_have_more():
    settings = BRIEF.model_copy(update={"micro_batch": 2})  # of 14 images they have 5, 5 and 4
    one = sharded("weight", settings=settings)
    same(one, together(3, in_micro_batches, settings), 1e-12)


def in_micro_batches(settings: Settings) -> dict[str, Any]:
    return sharded("weight", settings=settings.model_copy(update={"shard": True}))


def only_the_selected_moved(folder: Path, weights: dict[str, Any]) -> None:
    """What was stored leads from the plain model to these weights, and all else has its bits."""
    clip = exact_clip()
    base = {name: tensor.clone() for name, tensor in clip.model.state_dict().items()}
    for file in sorted((folder / "deltas").iterdir()):
        Delta.load(file).apply(clip.model)
    for name, tensor in clip.model.state_dict().items():
        np.testing.assert_array_equal(weights[name], tensor.numpy())
        still = np.ones(tensor.numel(), bool)
        for task, index in selections(folder).items():
            still[index if task.split()[1] == name else []] = False
        now, then = weights[name].reshape(-1), base[name].numpy().reshape(-1)
        np.testing.assert_array_equal(now[still], then[still])
        assert still.all() or (now[~still] != then[~still]).any()


class Weighs(Regularizer):
    """Counts in every step what this process holds of the model; adds nothing to the loss."""

    def begin(self, context: Any) -> None:
        SEEN.clear()
        SEEN.append(context.clip.model)

    def loss(self, features: Features) -> Tensor | None:
        found = {name: local(p).numel() for name, p in SEEN[0].named_parameters()}
        SEEN[1:] = [found]
        return None

    def end(self, context: Any) -> None:
        parts = [o for o in gc.get_objects() if isinstance(o, DTensor)]
        SEEN.append(sum(local(part).untyped_storage().nbytes() for part in parts))


SEEN: list[Any] = []


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def weighed(clip: Clip | None = None) -> tuple[dict[str, int], int, bool]:
    """What a process holds in a step, what it should, and whether just the whole is left then."""
    clip = clip or exact_clip()
    apart = fsdp.shardable_parameters(clip.model, clip.blocks.values(), locate(clip.model))
    expected = (
        fsdp.bytes_per_rank(clip.model, apart, collectives.world_size())
        // clip.logit_scale.element_size()
    )
    method = quick("spu").model_copy(update={"regularizer": Weighs()})
    retouch.teach(clip, a_stream(), method, settings=SHARD)
    whole = not any(isinstance(t, DTensor) for t in clip.model.state_dict().values())
    return SEEN[1], expected, whole and SEEN[2] == 0


def test_each_process_holds_its_part():
    clip = exact_clip()
    apart = fsdp.shardable_parameters(clip.model, clip.blocks.values(), locate(clip.model))
    assert len(apart) == 4 * 5, "in four blocks: query, key, value, out and the second MLP layer"
    sizes = {name: p.numel() for name, p in clip.model.named_parameters()}
    found = together(3, weighed)
    for name, size in sizes.items():
        parts = [held[name] for held, _, _ in found]
        assert sum(parts) == size if name in apart else parts == [size] * 3
    for held, expected, whole in found:
        assert sum(held.values()) <= expected < 0.65 * clip.size
        assert whole
    assert sum(found[0][0].values()) == found[0][1], "the first part is the largest"


def travelled(settings: Settings) -> dict[str, int]:
    return dict(sharded("weight", settings=settings)["sent"])


def test_what_travels_in_a_step():
    """Each block twice a pass, forth and back; of gradients, the selected entries as ever."""
    one, two = (together(2, travelled, settings)[0] for settings in (BRIEF, SHARD))
    clip = exact_clip()
    apart = fsdp.shardable_parameters(clip.model, clip.blocks.values(), locate(clip.model))
    passes = 2 * (4 + 1)  # two tasks of four steps, and a batch to score by
    assert two.pop("weights") == passes * 2 * sum(p.nbytes for p in apart.values()) // 2
    assert two.pop("joining") == 2 * sum(p.nbytes for p in apart.values()) // 2
    assert one == two


BACKBONES = {"transformers": tiny_clip, "BERT": dual, "open_clip": open_clip}


def to_the_bit(backbone: str, precision: str) -> tuple[str, str, int]:
    """What is learned with whole and with divided weights, and the bytes of weights sent."""
    stream = Stream.split(images("train", 4, 7), images("test", 4, 3), tasks=1)
    found = []
    for shard in (False, True):
        clip, how = BACKBONES[backbone](), {"precision": precision, "shard": shard, "epochs": 1}
        retouch.teach(clip, stream, quick("spu"), settings=BRIEF.model_copy(update=how))
        found.append(fingerprint(clip.model))
    return found[0], found[1], collectives.traffic["weights"]


@pytest.mark.parametrize(
    ("backbone", "precision"),
    [("transformers", "fp32"), ("transformers", "bf16"), ("BERT", "bf16"), ("open_clip", "bf16")],
)
def test_to_the_bit_in_both_precisions(backbone: str, precision: str):
    clip, found = BACKBONES[backbone](), together(2, to_the_bit, backbone, precision)
    assert found[0] == found[1]
    assert found[0][0] == found[0][1] != fingerprint(clip.model)
    apart = fsdp.shardable_parameters(clip.model, clip.blocks.values(), locate(clip.model))
    a_number = {"fp32": 4, "bf16": 2}[precision]  # half precision travels as such
    passes = 4 + 1  # of which each process sends half of the weights, forth and back
    assert found[0][2] == passes * a_number * sum(p.numel() for p in apart.values())


def few_rows() -> tuple[list[int], bool, bool]:
    """A block of four and six rows: what a process holds, and whether all stays the same."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 6)))
    apart = fsdp.shardable_parameters(model, [["0"]], ["0.0.weight"])
    first, inputs = model.get_parameter("0.0.weight"), torch.randn(3, 5)
    before = [p.detach().clone() for p in model.parameters()]
    (slope,) = torch.autograd.grad(model(inputs).square().sum(), first)
    with fsdp.sharded(model, [["0"]], apart):
        held = [local(p).numel() for p in model.parameters()]
        (found,) = torch.autograd.grad(model(inputs).square().sum(), first)
    back = all(map(torch.equal, model.parameters(), before))
    return held, torch.equal(slope, found), back


def test_more_processes_than_rows():
    found = together(5, few_rows)
    assert [held for held, _, _ in found] == [[20, 4, rows * 4, 6] for rows in (2, 2, 2, 0, 0)]
    assert all(same and back for _, same, back in found)


def huge(shard: bool) -> str:
    """The layers of a ViT-H/14, each tiny, of widths that three processes do not share evenly."""
    import transformers

    shape = {"num_attention_heads": 4, "projection_dim": 16}
    text = {"hidden_size": 16, "intermediate_size": 64, "num_hidden_layers": 24}
    words = {"vocab_size": 64, "max_position_embeddings": 12, "eos_token_id": 3}
    vision = {"hidden_size": 20, "intermediate_size": 80, "num_hidden_layers": 32}
    torch.manual_seed(0)
    config = transformers.CLIPConfig(
        text_config={**shape, **text, **words, "bos_token_id": 1, "pad_token_id": 0},
        vision_config={**shape, **vision, "image_size": 28, "patch_size": 14},
        projection_dim=16,
    )
    model = transformers.CLIPModel(config)
    clip = HuggingFaceClip(model, tiny_tokenizer(), Preprocess(size=(28, 28)), "tiny H/14")
    stream = Stream.split(images("train", 4, 7, 28), images("test", 4, 1, 28), tasks=1)
    settings = BRIEF.model_copy(update={"batch": 28, "epochs": 1, "shard": shard})
    retouch.teach(clip, stream, quick("spu"), settings=settings)
    return fingerprint(clip.model)


def huge_both() -> list[str]:
    return [huge(shard) for shard in (False, True)]


def test_the_layers_of_a_vit_h14_on_three_processes():
    found = together(3, huge_both)
    assert len({each for both in found for each in both}) == 1


def stopped(folder: Path, after: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        sharded("weight", folder, callback=Stop(after))


@pytest.mark.parametrize("then", [1, 3])
def test_a_run_goes_on_with_whole_weights_and_with_other_parts(then: int, tmp_path: Path):
    whole = learned("spu")
    together(2, stopped, tmp_path, 6)
    assert (tmp_path / "checkpoint.safetensors").exists()
    if then == 1:
        same(whole, [learned("spu", out=tmp_path)], 1e-7)
    else:
        same(whole, together(then, _sharded, tmp_path), 1e-7)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 8


def _sharded(folder: Path) -> dict[str, Any]:
    return sharded("weight", folder)


def orphaned() -> str:
    """The last process dies in a step; what the others then say."""

    class Dies(Regularizer):
        def loss(self, features: Features) -> Tensor | None:
            if collectives.rank() == 1:
                os._exit(1)
            return None

    method = quick("spu").model_copy(update={"regularizer": Dies()})
    try:
        retouch.teach(tiny_clip(), a_stream(), method, settings=SHARD)
    except collectives.RankLost as why:
        return str(why)
    raise AssertionError


def test_a_process_that_dies_ends_the_others_with_a_message():
    heard = together_or_lost(2, orphaned)
    assert "another process of this job ended" in heard[0]


def refused(name: str, **settings: Any) -> str:
    with pytest.raises(UserError) as why:
        retouch.teach(tiny_clip(), a_stream(), name, settings=Settings(shard=True, **settings))
    return str(why.value)


def refusals() -> list[str]:
    asked: list[dict[str, Any]] = [
        {"name": "er"},
        {"name": "spu-code"},
        {"name": "spu", "compile": True},
    ]
    return [refused(**each) for each in asked]


def test_what_is_refused():
    alone = refused("spu")
    assert "there is only this one" in alone
    assert "start several with torchrun, or leave sharding out" in alone
    everything, code, compiled = together(2, refusals)[0]
    assert "spu, spu-bounded, random, magnitude, piggyback, mask can do that, er" in everything
    assert "spu-code cannot" in code
    assert "sharding cannot be combined with compiling" in compiled
    assert not RECIPES["zscl"].shards


def test_nothing_to_divide():
    found = together(2, _everything_moves)
    assert all("every matrix in the model's blocks may be updated" in said for said in found)


def _everything_moves() -> str:
    with pytest.raises(UserError) as why:
        retouch.teach(
            tiny_clip(), a_stream(), quick("spu", trains__where="everything"), settings=SHARD
        )
    return str(why.value)


def test_the_command_line(tmp_path: Path):
    data, model = pictures(tmp_path / "data"), str(tiny_folder(tmp_path / "model"))
    words = ["learn", data, "--model", model, "--out", str(tmp_path / "run"), "--shard"]
    code, _, said = command(*words)
    assert code == 1
    assert said.startswith("error: sharding divides the frozen weights over several processes")
    shown = together_or_lost(2, command, *words, "--dry-run", "--epochs", "1", join=False)
    assert [each[0] for each in shown] == [0, 0], shown
    assert "Each process holds 127 kB of 177 kB of weights while a task is learned." in shown[0][1]
