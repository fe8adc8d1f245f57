"""Lower blocks that a run never changes are computed once per image, with the same bits.

`train/test_same_result.py` has that for every method.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from backbones import BACKBONES
from compiled_towers import count_passes
from PIL import Image
from recipes_for_tests import QUICK, LossRecorder, learn, quick, reference
from tiny import deep_clip, images, tiny_clip, tiny_siglip
from torch import Tensor

from retouch.clip import Clip
from retouch.clip.frozen.activation_store import ActivationStore
from retouch.clip.frozen.keyed_images import KeyedImages
from retouch.clip.frozen.reuse import release_if_trained, reuse_frozen
from retouch.clip.memory import free_memory
from retouch.data import Images, Stream
from retouch.data.loading.prefetch import load_images
from retouch.data.stores.image_store import ImageStore, Indices
from retouch.methods.updates.selective import SelectiveUpdate
from retouch.sparse import fingerprint, trainable_only

UPPER = SelectiveUpdate(blocks=0.5)
PICTURES = images("pictures", 6, 4)


def upper_half(clip: Clip) -> list[str]:
    return list(UPPER.trained_parameters(clip))


def keyed(clip: Clip, *indices: int) -> KeyedImages:
    loaded = load_images(clip, PICTURES, np.array(indices, np.int64))
    assert isinstance(loaded, KeyedImages)
    return loaded


def pixels(clip: Clip, *indices: int) -> Tensor:
    return torch.from_numpy(PICTURES.read(np.array(indices, np.int64), clip.preprocess))


@dataclass
class PaintedStore(ImageStore):
    """A store of one's own as a dataclass: equal to others by its values, and not hashable."""

    levels: Indices

    def __len__(self) -> int:
        return len(self.levels)

    def image(self, index: int) -> Image.Image:
        return Image.new("RGB", (16, 16), (int(self.levels[index]), 40, 40))

    def location(self, index: int) -> str:
        return f"number {index}"

    def version(self) -> str:
        return str(self.levels.tolist())


@pytest.mark.slow
def test_a_store_of_ones_own_may_be_a_dataclass():
    clip, labels = tiny_clip(), np.repeat([0, 1], 6)
    stores = [PaintedStore(levels) for levels in (labels * 90 + 60, labels * 90 + 61)]
    train, test = (Images("painted", ["dark", "bright"], labels, store) for store in stores)
    results = learn(clip, Stream.split(train, test, tasks=1), quick("spu+"), settings=QUICK)
    assert results.finished


def test_lower_blocks_run_once_per_image(monkeypatch: pytest.MonkeyPatch):
    clip = tiny_clip()
    counts = count_passes(clip, "image", monkeypatch)
    with reuse_frozen(clip, upper_half(clip)), torch.no_grad():
        counts.clear()
        first = clip.image_features(keyed(clip, 3, 1, 7))
        assert counts == [8], "in batches of one size"
        again = clip.image_features(keyed(clip, 7, 3))
        assert counts == [8], "known images are not computed again"
        clip.image_features(keyed(clip, 7, 2, 3))
        assert counts == [8, 8], "one of them is new"
    assert torch.equal(again, first[[2, 0]])
    assert torch.equal(first, clip.image_features(pixels(clip, 3, 1, 7)))
    assert clip.frozen is None


@pytest.mark.parametrize("make", [tiny_clip, tiny_siglip, deep_clip])
def test_features_and_gradients_are_the_same(make: Callable[[], Clip]):
    clip = make()
    trained = upper_half(clip)
    order = (5, 2, 11, 0, 20, 2)
    results = []
    for reuse in (trained, None):
        with reuse_frozen(clip, reuse), trainable_only(clip.model, trained):
            inputs = keyed(clip, *order) if reuse else pixels(clip, *order)
            features = clip.image_features(inputs)
            features[:, 0].sum().backward()
            grads = [clip.model.get_parameter(name).grad for name in trained]
            results.append([features.detach(), *(g.clone() for g in grads if g is not None)])
    assert len(results[0]) > 1
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_attention_below_the_lowest_trained_layer_runs_once_per_image():
    clip = deep_clip()
    attention = clip.model.get_submodule(f"{clip.blocks['image'][2]}.self_attn")
    counts, forward = [], attention.forward

    def counting(hidden_states: Tensor, **options: object) -> object:
        counts.append(len(hidden_states))
        return forward(hidden_states, **options)

    attention.forward = counting
    with reuse_frozen(clip, upper_half(clip)), torch.no_grad():
        assert clip.frozen is not None
        assert clip.frozen.half is not None
        counts.clear()
        first = clip.image_features(keyed(clip, 3, 1, 7))
        again = clip.image_features(keyed(clip, 7, 3))
    assert counts == [8]
    assert torch.equal(again, first[[2, 0]])
    assert torch.equal(first, clip.image_features(pixels(clip, 3, 1, 7)))


def test_attention_that_is_trained_or_changes_is_computed_again():
    clip = deep_clip()
    weight = f"{clip.blocks['image'][2]}.self_attn.k_proj.weight"
    with reuse_frozen(clip, [*upper_half(clip), weight]):
        assert clip.frozen is not None
        assert clip.frozen.half is None
    with reuse_frozen(clip, upper_half(clip)), torch.no_grad():
        clip.image_features(keyed(clip, 1, 2))
        clip.model.get_parameter(weight).mul_(1.5)
        after = clip.image_features(keyed(clip, 1, 2))
    assert torch.equal(after, clip.image_features(pixels(clip, 1, 2)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["spu+", "lora-ewc", "spu", "er+lwf"])
def test_a_deeper_model_learns_the_same_with_and_without(name: str, short_stream: Stream):
    method = quick("spu+")
    if name != "spu+":
        parts = ("regularizer", "after_task")
        method = method.with_change({part: getattr(quick(name), part) for part in parts})
    if name == "lora-ewc":
        method = method.with_change({"regularizer.where": ("*.mlp.fc1.weight",)})
    results = []
    for reuse in (True, False):
        clip, recorder = deep_clip(), LossRecorder()
        settings = QUICK.model_copy(update={"reuse_frozen": reuse})
        learn(
            clip, short_stream, method, settings=settings, callback=recorder, reference=reference()
        )
        results.append((fingerprint(clip.model), recorder.losses))
    assert results[0] == results[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", BACKBONES)
def test_every_backbone_gives_the_same_features(name: str):
    clip = BACKBONES[name]()
    pictures = images("pictures", 6, 4, clip.preprocess.size[0])
    indices = np.array([4, 9, 1])
    whole = clip.image_features(torch.from_numpy(pictures.read(indices, clip.preprocess)))
    blocks = clip.blocks["image"]
    trained = [n for n, _ in clip.model.named_parameters() if blocks and n.startswith(blocks[-1])]
    with reuse_frozen(clip, trained), torch.no_grad():
        assert (clip.frozen is not None) == (len(blocks) > 1)
        for _ in range(2):
            features = clip.image_features(load_images(clip, pictures, indices))
            assert torch.allclose(features, whole, atol=1e-6)


def test_a_lower_weight_that_changes_after_all_is_noticed():
    clip = tiny_clip()
    with reuse_frozen(clip, upper_half(clip)), torch.no_grad():
        before = clip.image_features(keyed(clip, 1, 2))
        clip.model.get_parameter(f"{clip.blocks['image'][0]}.mlp.fc1.weight").mul_(1.5)
        after = clip.image_features(keyed(clip, 1, 2))
        assert not torch.equal(before, after)
        assert torch.equal(after, clip.image_features(pixels(clip, 1, 2)))


def test_lower_weights_that_need_a_gradient_get_it():
    clip = tiny_clip()
    lower = f"{clip.blocks['image'][0]}.mlp.fc1.weight"
    with reuse_frozen(clip, upper_half(clip)), trainable_only(clip.model, [lower]):
        clip.image_features(keyed(clip, 1, 2))[:, 0].sum().backward()
        assert clip.model.get_parameter(lower).grad is not None


def test_hooks_see_every_pass():
    clip, seen = tiny_clip(), []
    block = clip.model.get_submodule(clip.blocks["image"][0])
    with reuse_frozen(clip, upper_half(clip)), torch.no_grad():
        clip.image_features(keyed(clip, 1, 2))
        block.register_forward_hook(lambda *_: seen.append(1))
        clip.image_features(keyed(clip, 1, 2))
    assert seen


@pytest.mark.parametrize(
    "names",
    [
        None,
        ["vision_model.post_layernorm.weight"],
        ["vision_model.encoder.layers.0.mlp.fc1.weight"],
        ["vision_model.embeddings.class_embedding"],
    ],
)
def test_nothing_is_reused_where_lower_or_unknown_weights_train(names: list[str] | None):
    clip = tiny_clip()
    with reuse_frozen(clip, names):
        assert clip.frozen is None


def test_a_task_that_trains_other_weights_ends_it():
    clip = tiny_clip()
    with reuse_frozen(clip, upper_half(clip)):
        release_if_trained(clip, upper_half(clip))
        assert clip.frozen is not None
        release_if_trained(clip, ["vision_model.encoder.layers.0.mlp.fc1.weight"])
        assert clip.frozen is None


def test_a_tower_with_a_shortcut_around_its_blocks_runs_as_a_whole():
    clip = tiny_clip()
    embed, blocks = clip.model.vision_model.embeddings, clip.model.vision_model.encoder.layers
    saved: list[Tensor] = []
    embed.register_forward_hook(lambda *call: saved.append(call[2]))  # as a U-Net would
    original = blocks[1].forward
    blocks[1].forward = lambda hidden, *more, **o: original(hidden + saved[-1], *more, **o)
    embed._forward_hooks.clear()
    forward = embed.forward
    embed.forward = lambda *a, **o: saved.append(forward(*a, **o)) or saved[-1]
    with reuse_frozen(clip, upper_half(clip)):
        assert clip.frozen is None


@pytest.mark.parametrize("folder", [False, True])
def test_what_does_not_fit_is_computed_again(folder: bool, tmp_path: Path):
    row = torch.arange(12.0).view(3, 4)
    disk = 2 * row.nbytes if folder else None
    store = ActivationStore(tmp_path if folder else None, memory=row.nbytes, disk=disk)
    store.add("abcde", torch.stack([row + i for i in range(5)]))
    assert len(store) == (3 if folder else 1)
    assert store.bytes_held == {"memory": row.nbytes, "disk": 2 * row.nbytes if folder else 0}
    out = torch.zeros(2, 3, 4)
    store.gather("a", out, [1])
    assert torch.equal(out[1], row)
    if folder:
        store.gather("cb", out, [0, 1])
        assert torch.equal(out, torch.stack([row + 2, row + 1]))
    assert list(tmp_path.iterdir()) == [], "files have no name, so none is left behind"
    store.clear()
    assert "a" not in store
    store.add("x", row[None])
    assert "x" in store
    assert store.close()
    store.add("y", row[None])
    assert len(store) == 0


def test_free_memory_is_known():
    assert 2**20 < free_memory(torch.device("cpu")) < 2**50


@pytest.mark.slow
def test_little_memory_gives_the_same_result(short_stream: Stream, monkeypatch: pytest.MonkeyPatch):
    results = []
    for memory in (None, 0):
        monkeypatch.setattr(
            "retouch.clip.frozen.reuse.ActivationStore",
            lambda folder, memory=memory: ActivationStore(None, memory),
        )
        clip, recorder = tiny_clip(), LossRecorder()
        learn(clip, short_stream, quick("spu+"), callback=recorder)
        results.append((fingerprint(clip.model), recorder.losses))
    assert results[0] == results[1]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["er+lwf", "er+prd", "mas", "zscl", "lora-ewc"])
def test_regularizers_read_the_right_features_when_only_upper_blocks_move(
    part: str, short_stream: Stream
):
    """Teachers, reference pairs and importances beside an update that leaves lower blocks."""
    changes = {"regularizer": quick(part).regularizer, "after_task": quick(part).after_task}
    changes |= {"regularizer.where": ("*.mlp.fc1.weight",)} if part == "lora-ewc" else {}
    method = quick("spu+").with_change(changes)
    results = []
    for reuse in (True, False):
        clip, recorder = tiny_clip(), LossRecorder()
        settings = QUICK.model_copy(update={"reuse_frozen": reuse})
        learn(
            clip, short_stream, method, settings=settings, callback=recorder, reference=reference()
        )
        results.append((fingerprint(clip.model), recorder.losses))
    assert results[0] == results[1]


@pytest.mark.slow
def test_compiled_towers_start_at_the_same_block():
    """As on a GPU: padded batches, a shortened last block, an encoder of our own."""
    clip = tiny_clip()
    trained = upper_half(clip)
    whole = clip.image_features(pixels(clip, *range(5))).detach()
    with reuse_frozen(clip, trained), clip.fast("aot_eager"), trainable_only(clip.model, trained):
        for _ in range(2):
            features = clip.image_features(keyed(clip, *range(5)))
            assert torch.allclose(features, whole, atol=1e-5)
        features[:, 0].sum().backward()
        assert clip.frozen is not None
        assert len(clip.frozen.store) == 5
        assert any(clip.model.get_parameter(name).grad is not None for name in trained)
        assert torch.equal(
            clip.image_features(keyed(clip, 3)), clip.image_features(keyed(clip, 3, 3))[1:]
        )
