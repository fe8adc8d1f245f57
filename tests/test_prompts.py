"""L2P and DualPrompt: prompts in the visual tower, chosen by keys, saved beside a plain model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recipes_for_tests import LossRecorder
from safetensors.torch import load_file
from test_clip import dual, open_clip, own_pair
from test_learn import Stop
from tiny import images, tiny_clip
from torch import Tensor
from torch.nn.functional import cosine_similarity

import retouch
from retouch.clip import Clip
from retouch.clip.visual_prompts import VisualPrompts, prompts_of
from retouch.clip.vit_adapter import ViTAdapter, attend
from retouch.data import Stream
from retouch.errors import UserError
from retouch.methods import BalancedReplay, Method, Regularizer, Settings
from retouch.methods.prompts import DualPrompts, KeyLoss, PromptPool
from retouch.sparse import Delta, fingerprint
from retouch.train.loop import backward, task_context

QUICK = Settings(epochs=3, batch=8, lr=5e-3)
BACKBONES: dict[str, Callable[[], Clip]] = {
    "CLIPModel": tiny_clip,
    "dual encoder": dual,
    "open_clip": open_clip,
}


def l2p(**changes: Any) -> Method:
    return Method(
        name="l2p",
        update=PromptPool(pool=4, length=2, top=2, **changes),
        replay=BalancedReplay(size=12, balance="class"),
        regularizer=KeyLoss(weight=0.5),
    )


def dualprompt(**changes: Any) -> Method:
    own = {"tasks": 3, "general": (1,), "expert": (2,), "expert_length": 4, "lr": 0.03}
    return Method(
        name="dualprompt",
        update=DualPrompts(**{**own, **changes}),
        replay=BalancedReplay(size=12, balance="class"),
        regularizer=KeyLoss(weight=1.0),
    )


METHODS = {"l2p": l2p, "dualprompt": dualprompt}


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> Method:
    return METHODS[request.param]()


@pytest.fixture(params=BACKBONES)
def backbone(request: pytest.FixtureRequest) -> Clip:
    return BACKBONES[request.param]()


def pixels(count: int = 5) -> Tensor:
    rng = np.random.default_rng(0)
    return torch.from_numpy(rng.integers(0, 256, (count, 16, 16, 3), np.uint8))


def loud(clip: Clip, scale: float = 3.0, learned: int = 2) -> VisualPrompts:
    """Prompts far from small, so that what they do shows, as if so many tasks were learned."""
    prompts = prompts_of(clip.model)
    assert prompts is not None
    rng = torch.Generator().manual_seed(1)
    for parameter in prompts.parameters():
        parameter.data = scale * torch.randn(parameter.shape, generator=rng)
    prompts.learned.fill_(learned)
    return prompts


def pooled(clip: Clip, some: Tensor) -> Tensor:
    """The visual tower's state before the projection, by the library's own means."""
    there = clip.preprocess.normalize(some)
    if hasattr(clip.model, "visual"):
        visual = clip.model.visual
        return visual._pool(visual.transformer(visual._embeds(there)))[0]
    return clip.model.vision_model(pixel_values=there).pooler_output


def test_prompts_have_no_part_in_anything_before_a_task_is_learned(backbone: Clip, method: Method):
    before, size = backbone.image_features(pixels()), backbone.size
    method.start(backbone, QUICK)
    assert torch.equal(backbone.image_features(pixels()), before)
    assert backbone.size > size
    loud(backbone)
    assert not torch.allclose(backbone.image_features(pixels()), before, atol=1e-3)


# The forward pass, against one taken by hand.


def apart(query: Tensor) -> Tensor:
    """Keys by which images differ: what each query has that their mean has not."""
    mean = query.mean(dim=0)
    other = query - mean
    return (other - (other @ mean)[:, None] * mean / mean.square().sum()).detach()


def test_l2p_by_hand():
    """The two nearest prompts of four, as tokens before the first norm, next to the patches."""
    clip, plain = tiny_clip(), tiny_clip()
    l2p().start(clip, QUICK)
    prompts = loud(clip)
    query = pooled(plain, pixels())
    prompts.keys.data = apart(query)[:4]
    near = torch.stack([cosine_similarity(query, key, dim=-1) for key in prompts.keys], dim=1)
    chosen = near.argsort(dim=1, descending=True)[:, :2]
    assert len({tuple(row) for row in chosen.sort(dim=1).values.tolist()}) > 1

    vision = plain.model.vision_model
    tokens = vision.embeddings(plain.preprocess.normalize(pixels()))
    extra = torch.stack([torch.cat([prompts.pool[i] for i in row]) for row in chosen])
    state = vision.pre_layrnorm(torch.cat([extra, tokens], dim=1))  # CLS stands at place 4
    for layer in vision.encoder.layers:
        state = layer(state, None)
    out = plain.model.visual_projection(vision.post_layernorm(state[:, 4]))
    expected = out / out.norm(dim=1, keepdim=True)
    torch.testing.assert_close(clip.image_features(pixels()), expected, rtol=0, atol=2e-6)


def test_dualprompt_by_hand():
    """A general prefix in layer 1 and, in layer 2, that of the expert with the nearest key."""
    clip, plain = tiny_clip(), tiny_clip()
    dualprompt().start(clip, QUICK)
    prompts = loud(clip, learned=2)
    query = pooled(plain, pixels())
    for key, new in zip(prompts.keys, [*apart(query)[:2], query[2]], strict=True):
        key.data = new.detach()
    near = torch.stack([cosine_similarity(query, key, dim=-1) for key in prompts.keys], dim=1)
    assert set(near.argmax(dim=1).tolist()) == {2}, "nearest of all, but not learned yet"
    chosen = near[:, :2].argmax(dim=1).tolist()
    assert sorted(set(chosen)) == [0, 1]

    vision = plain.model.vision_model
    state = vision.pre_layrnorm(vision.embeddings(plain.preprocess.normalize(pixels())))
    prefixes = [
        [prompts.general[0]] * 5,
        [prompts.experts[expert][0] for expert in chosen],
    ]
    for layer, each in zip(vision.encoder.layers, prefixes, strict=True):
        rows = [_block(layer, row, *prefix) for row, prefix in zip(state, each, strict=True)]
        state = torch.stack(rows)
    out = plain.model.visual_projection(vision.post_layernorm(state[:, 0]))
    expected = out / out.norm(dim=1, keepdim=True)
    torch.testing.assert_close(clip.image_features(pixels()), expected, rtol=0, atol=2e-6)


def _block(layer: Any, row: Tensor, prefix_keys: Tensor, prefix_values: Tensor) -> Tensor:
    """One image [T, W] through one block, head by head."""
    own = layer.self_attn
    x = layer.layer_norm1(row)
    q, k, v = own.q_proj(x), own.k_proj(x), own.v_proj(x)
    k, v = torch.cat([prefix_keys, k]), torch.cat([prefix_values, v])
    heads = []
    for head in range(2):
        part = slice(16 * head, 16 * head + 16)
        weights = (q[:, part] @ k[:, part].T / 4).softmax(dim=-1)
        heads.append(weights @ v[:, part])
    row = row + own.out_proj(torch.cat(heads, dim=-1))
    return row + layer.mlp(layer.layer_norm2(row))


def test_attention_without_a_prefix_is_the_librarys(backbone: Clip):
    tower = ViTAdapter(backbone)
    tokens = torch.randn(3, 5, tower.width)
    for attention in tower.attentions:
        arguments = (tokens, tokens, tokens) if hasattr(attention, "in_proj_weight") else (tokens,)
        none = torch.empty(2, 3, 0, tower.width)
        found, expected = attend(attention, tokens, none), attention(*arguments)[0]
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)
        one = torch.randn(2, 3, 1, tower.width)
        assert not torch.allclose(attend(attention, tokens, one), expected, atol=1e-2)


def test_the_query_is_of_the_tower_without_prompts_on_every_backbone(
    backbone: Clip, method: Method
):
    expected = pooled(backbone, pixels())
    method.start(backbone, QUICK)
    prompts = loud(backbone)
    prompts.study(0)
    prompts.listen()
    backbone.image_features(pixels())
    assert prompts._heard is not None
    torch.testing.assert_close(prompts._heard[0], expected, rtol=0, atol=2e-6)
    assert not prompts._heard[0].requires_grad


def test_gradients_reach_prompts_in_bf16_too(backbone: Clip, method: Method):
    method.start(backbone, QUICK)
    prompts = loud(backbone, scale=0.5)
    exact = backbone.image_features(pixels())
    backbone.bf16 = True
    rough = backbone.image_features(pixels())
    assert rough.dtype == torch.float32
    assert (exact * rough).sum(dim=1).min() > 0.98
    rough[:, 0].sum().backward()
    for name, parameter in backbone.model.named_parameters():
        in_tower = name.startswith(backbone.image_prefix)
        if in_tower or name in ("prompts.pool", "prompts.general", "prompts.experts.0"):
            assert parameter.grad is not None, name
    assert all(key.grad is None for key in _keys(prompts)), "chosen by keys, not scaled by them"


def _keys(prompts: VisualPrompts) -> list[Tensor]:
    return [prompts.keys] if isinstance(prompts.keys, Tensor) else list(prompts.keys)


def test_a_twin_has_prompts_of_its_own(backbone: Clip, method: Method):
    method.start(backbone, QUICK)
    loud(backbone)
    twin, before = backbone.frozen_copy(), backbone.image_features(pixels())
    torch.testing.assert_close(twin.image_features(pixels()), before)
    loud(backbone, scale=-1.0)
    after = backbone.image_features(pixels())
    torch.testing.assert_close(twin.image_features(pixels()), before)
    assert not torch.allclose(after, before, atol=1e-3)
    assert twin.model.prompts is not backbone.model.prompts


# The key loss.


def gradients(method: Method, stream: Stream, task: int, **settings: Any) -> dict[str, Tensor]:
    """Of one step on three new and five replayed images, and its loss."""
    clip, chosen = tiny_clip(), QUICK.model_copy(update=settings)
    clip.bf16 = chosen.precision == "bf16"
    own = method.start(clip, chosen)
    loud(clip, scale=0.5, learned=task)
    context = task_context(clip, stream, stream.tasks[task], own, chosen)
    earlier = stream.tasks[0].train[:5]
    batch = context.load(np.concatenate([context.task.train[:3], earlier]), new=3)
    before = context.load(context.task.train[-8:])
    with own.update.begin(context) as update:
        own.regularizer.begin(context)
        assert update.optimizer is not None
        backward(
            context, before, own.regularizer
        )  # what it heard there has no part in the next step
        update.optimizer.zero_grad()
        value = backward(context, batch, own.regularizer)
        assert sum(map(len, prompts_of(clip.model)._heard or [])) <= 8, "and is not piled up"
        moving = {n: p for n, p in clip.model.named_parameters() if p.requires_grad}
        return {n: p.grad.clone() for n, p in moving.items()} | {"loss": torch.as_tensor(value)}


@pytest.mark.parametrize("micro", [None, 3])
def test_the_key_loss_by_hand(stream: Stream, micro: int | None):
    """λ Σ (1 − cos) over what was chosen; of DualPrompt's batch, the new images alone count."""
    for make, task in ((l2p, 0), (l2p, 1), (dualprompt, 1)):
        with_keys = gradients(make(), stream, task, micro_batch=micro)
        free = make().model_copy(update={"regularizer": Regularizer()})
        clip = tiny_clip()
        own = free.start(clip, QUICK)
        prompts = loud(clip, scale=0.5)
        context = task_context(clip, stream, stream.tasks[task], own, QUICK)
        earlier = stream.tasks[0].train[:5]
        batch = context.load(np.concatenate([context.task.train[:3], earlier]), new=3)
        query = pooled(tiny_clip(), batch.pixels).detach()
        if make is l2p:
            near = torch.stack([cosine_similarity(query, k, dim=-1) for k in prompts.keys], dim=1)
            value = 0.5 * (2 - near.sort(dim=1).values[:, -2:].sum(dim=1)).mean()
            name, key = "prompts.keys", prompts.keys
        else:
            value = 1.0 * (1 - cosine_similarity(query[:3], prompts.keys[1], dim=-1)).mean()
            name, key = "prompts.keys.1", prompts.keys[1]
        (slope,) = torch.autograd.grad(value, [key])
        torch.testing.assert_close(with_keys[name], slope, rtol=1e-4, atol=1e-6)
        with own.update.begin(context):
            rest = sum(term.item() for term in context.losses(batch))
        assert float(with_keys["loss"]) == pytest.approx(rest + value.item(), rel=1e-5)


def test_micro_batches_have_the_same_gradient(method: Method, stream: Stream):
    for precision, close in (("fp32", 2e-6), ("bf16", 2e-2)):
        whole = gradients(method, stream, 1, precision=precision)
        parts = gradients(method, stream, 1, precision=precision, micro_batch=3)
        assert whole.keys() == parts.keys()
        for name in whole:
            torch.testing.assert_close(parts[name], whole[name], rtol=1e-3, atol=close)


def test_the_key_loss_needs_prompts(stream: Stream):
    alone = Method(name="mine", regularizer=KeyLoss())
    with pytest.raises(UserError, match="this method has no prompts"):
        retouch.teach(tiny_clip(), stream, alone, settings=QUICK)


# Runs.


def test_a_run_moves_prompts_keys_and_projections(method: Method, stream: Stream, tmp_path: Path):
    clip, heard, control = tiny_clip(), LossRecorder(), images("control", 4, 3)
    plain = retouch.teach(
        tiny_clip(), stream, Method(name="frozen"), control=control, settings=QUICK
    )
    start = {n: t.clone() for n, t in clip.model.state_dict().items()}
    results = retouch.teach(
        clip, stream, method, settings=QUICK, control=control, out=tmp_path, callback=heard
    )
    assert results.rows[0] == plain.rows[0], "before the first task, the model as it was"
    assert sum(heard.losses[6:9]) < sum(heard.losses[:3])
    state = clip.model.state_dict()
    moved = {n for n in start if not torch.equal(state[n], start[n])}
    assert moved == {"visual_projection.weight", "text_projection.weight"}
    assert state["prompts.learned"] == 3
    assert clip.model.prompts.task is None
    assert all(p.requires_grad and p.grad is None for p in clip.model.parameters())

    fresh = tiny_clip()
    method.start(fresh, QUICK)
    names = {n for n in fresh.model.state_dict() if n.startswith("prompts.")}
    assert not any(torch.equal(fresh.model.state_dict()[n], state[n]) for n in names)
    for number in range(3):
        delta = Delta.load(tmp_path / "deltas" / f"task-{number + 1:02}.safetensors")
        delta.apply(fresh.model)
    assert fingerprint(fresh.model) == fingerprint(clip.model)
    assert torch.equal(fresh.image_features(pixels()), clip.image_features(pixels()))


def test_an_expert_moves_in_its_own_task_alone(stream: Stream, tmp_path: Path):
    retouch.teach(tiny_clip(), stream, dualprompt(), settings=QUICK, out=tmp_path)
    for number in range(3):
        delta = Delta.load(tmp_path / "deltas" / f"task-{number + 1:02}.safetensors")
        prompts = {n.removeprefix("prompts.") for n in delta.changes if n.startswith("prompts.")}
        assert prompts == {"general", f"experts.{number}", f"keys.{number}", "learned"}
        assert all(change.xor.any() for change in delta.changes.values())


@pytest.mark.parametrize(
    ("after", "settings"), [(4, {"micro_batch": 5}), (5, {"precision": "bf16"})]
)
def test_a_run_that_stopped_goes_on_to_the_same_bits(
    method: Method, stream: Stream, tmp_path: Path, after: int, settings: dict[str, Any]
):
    options: dict[str, Any] = {"settings": QUICK.model_copy(update={"epochs": 1, **settings})}
    whole = tiny_clip()
    retouch.teach(whole, stream, method, **options)
    options |= {"out": tmp_path, "checkpoint_seconds": 0}
    stop = Stop(after, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        retouch.teach(tiny_clip(), stream, method, callback=stop, **options)
    clip = tiny_clip()
    assert retouch.teach(clip, stream, method, **options).finished
    assert fingerprint(clip.model) == fingerprint(whole.model)


def test_the_seed_makes_the_prompts(method: Method):
    prints = []
    for seed in (0, 0, 1):
        clip = tiny_clip()
        torch.rand(seed + 1)  # no global state has a part in it
        method.start(clip, QUICK.model_copy(update={"seed": seed}))
        prints.append(fingerprint(clip.model))
    assert prints[0] == prints[1] != prints[2]


def test_the_key_loss_and_the_prompts_act(stream: Stream):
    quick = QUICK.model_copy(update={"epochs": 1})
    for make in METHODS.values():
        kept, free = tiny_clip(), tiny_clip()
        retouch.teach(kept, stream, make(), settings=quick)
        without = make().model_copy(update={"regularizer": Regularizer()})
        retouch.teach(free, stream, without, settings=quick)
        start = tiny_clip()
        make().start(start, QUICK)
        still = [torch.equal(a, b) for a, b in zip(*map(_keys_of, (free, start)), strict=True)]
        assert all(still), "nothing else moves the keys"
        for a, b in zip(*map(_keys_of, (kept, start)), strict=True):
            assert not torch.equal(a, b)


def _keys_of(clip: Clip) -> list[Tensor]:
    prompts = prompts_of(clip.model)
    assert prompts is not None
    return _keys(prompts)


# Beginning again, going on, and what cannot be.


def test_start_replaces_what_has_learned_nothing(stream: Stream):
    expected, clip = tiny_clip(), tiny_clip()
    retouch.preview(clip, stream, dualprompt(), settings=QUICK)
    retouch.preview(clip, stream, l2p(), settings=QUICK.model_copy(update={"seed": 5}))
    for each in (expected, clip):
        retouch.teach(each, stream, l2p(), settings=QUICK)
    assert fingerprint(clip.model) == fingerprint(expected.model)
    assert torch.equal(clip.image_features(pixels()), expected.image_features(pixels()))


def test_a_model_with_prompts_goes_on_learning(stream: Stream, tmp_path: Path):
    first = Stream(stream.train, stream.test, stream.tasks[:1])
    clip, method = tiny_clip(), dualprompt(tasks=2)
    retouch.teach(clip, first, method, settings=QUICK)
    clip.save(tmp_path)
    loaded = retouch.load(str(tmp_path))
    expert = clip.model.prompts.experts[0].clone()
    for each in (clip, loaded):
        retouch.teach(each, first, method, settings=QUICK)
    assert fingerprint(clip.model) == fingerprint(loaded.model)
    assert clip.model.prompts.learned == 2
    assert torch.equal(clip.model.prompts.experts[0], expert)
    with pytest.raises(UserError, match=r"l2p .* cannot continue"):
        retouch.teach(clip, first, l2p(), settings=QUICK)
    with pytest.raises(UserError, match=r"task 3 needs an expert.*room for 2.*update.tasks=3"):
        retouch.teach(clip, first, method, settings=QUICK)


def test_what_cannot_be_is_refused():
    with pytest.raises(UserError, match=r"update.expert=\(3, 4, 5\).*which has 2"):
        Method(name="dualprompt", update=DualPrompts()).start(tiny_clip(), QUICK)
    with pytest.raises(UserError, match="different layers"):
        dualprompt(general=(1, 2)).start(tiny_clip(), QUICK)
    with pytest.raises(UserError, match=r"update.top=5.*pool of 3"):
        Method(name="l2p", update=PromptPool(pool=3)).start(tiny_clip(), QUICK)
    with pytest.raises(UserError, match="will not do: it is built in another way"):
        l2p().start(own_pair(), QUICK)
    vision = {"image_size": 16, "layers": 2, "width": 64, "head_width": 32, "patch_size": 8}
    mean = open_clip(name="avg", vision_cfg={**vision, "pool_type": "avg"})
    with pytest.raises(UserError, match="class token alone"):
        l2p().start(mean, QUICK)


# Saving and loading.


@pytest.mark.parametrize("name", ["CLIPModel", "dual encoder"])
def test_saved_beside_a_plain_model(name: str, method: Method, tmp_path: Path):
    clip = BACKBONES[name]()
    plain = BACKBONES[name]()
    plain.save(tmp_path / "plain")
    method.start(clip, QUICK)
    loud(clip)
    before = fingerprint(clip.model)
    clip.save(tmp_path / "model")
    assert fingerprint(clip.model) == before
    plain_file, file = (tmp_path / f / "model.safetensors" for f in ("plain", "model"))
    assert load_file(file).keys() == load_file(plain_file).keys()

    loaded = retouch.load(str(tmp_path / "model"))
    assert torch.equal(loaded.image_features(pixels()), clip.image_features(pixels()))
    assert fingerprint(loaded.model) == before
    assert list(dict(loaded.model.named_parameters())) == list(dict(clip.model.named_parameters()))

    import transformers

    kind = getattr(transformers, type(clip.model).__name__)
    bare = kind.from_pretrained(tmp_path / "model")
    torch.testing.assert_close(
        bare.get_image_features(pixel_values=clip.preprocess.normalize(pixels())).pooler_output,
        plain.encode_images(clip.preprocess.normalize(pixels())),
    )
    plain.save(tmp_path / "model")
    assert not (tmp_path / "model" / "prompts.safetensors").exists()
    assert prompts_of(retouch.load(str(tmp_path / "model")).model) is None


def test_a_wrong_file_of_prompts_is_refused(tmp_path: Path):
    clip = tiny_clip()
    l2p().start(clip, QUICK)
    clip.save(tmp_path)
    file = tmp_path / "prompts.safetensors"
    whole = file.read_bytes()
    header = json.loads(whole[8 : 8 + int.from_bytes(whole[:8], "little")])["__metadata__"]
    assert json.loads(header["retouch"])["kind"] == "l2p"
    file.write_bytes(whole[:200])
    with pytest.raises(UserError, match=r"prompts\.safetensors is damaged"):
        retouch.load(str(tmp_path))
    tiny_clip(seed=1).save(tmp_path)
    file.write_bytes(whole)
    with pytest.raises(UserError, match="belongs to other weights"):
        retouch.load(str(tmp_path))
    assert prompts_of(retouch.load(str(tmp_path), random_weights=True).model) is None
