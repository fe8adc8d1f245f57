"""L2P and DualPrompt as methods: the key loss, runs, and continuing a model with prompts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from backbones import own_pair
from prompted import (
    METHODS,
    QUICK,
    dualprompt,
    keys_of,
    l2p,
    pooled_output,
    random_images,
    set_prompts,
)
from recipes_for_tests import LossRecorder
from runs import Stop
from tiny import images, tiny_clip
from torch import Tensor
from torch.nn.functional import cosine_similarity

import retouch
from retouch.clip.prompts.visual import prompts_of
from retouch.data import Stream
from retouch.errors import UserError
from retouch.methods import Method, Regularizer
from retouch.methods.updates.prompts import DualPrompts, KeyLoss, PromptPool
from retouch.sparse import Delta, fingerprint
from retouch.train.loop import backward, task_context


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> Method:
    return METHODS[request.param]()


def gradients(method: Method, stream: Stream, task: int, **settings: Any) -> dict[str, Tensor]:
    """The gradients of one step on three new and five replayed images, and its loss."""
    clip, changed = tiny_clip(), QUICK.model_copy(update=settings)
    clip.bf16 = changed.precision == "bf16"
    started = method.start(clip, changed)
    set_prompts(clip, scale=0.5, learned=task)
    context = task_context(clip, stream, stream.tasks[task], started, changed)
    earlier = stream.tasks[0].train[:5]
    batch = context.load(np.concatenate([context.task.train[:3], earlier]), new=3)
    before = context.load(context.task.train[-8:])
    with started.update.begin(context) as update:
        started.regularizer.begin(context)
        assert update.optimizer is not None
        backward(context, before, started.regularizer)  # its queries must not join the next step
        update.optimizer.zero_grad()
        value = backward(context, batch, started.regularizer)
        assert sum(map(len, prompts_of(clip.model)._queries or [])) <= 8, "and do not accumulate"
        trainable = {n: p for n, p in clip.model.named_parameters() if p.requires_grad}
        grads = {name: p.grad.clone() for name, p in trainable.items()}
        return grads | {"loss": torch.as_tensor(value)}


@pytest.mark.slow
@pytest.mark.parametrize("micro", [None, 3])
def test_the_key_loss_by_hand(stream: Stream, micro: int | None):
    """λ Σ (1 − cos) over the selected keys; in DualPrompt only the new images count."""
    for make, task in ((l2p, 0), (l2p, 1), (dualprompt, 1)):
        with_keys = gradients(make(), stream, task, micro_batch=micro)
        without_loss = make().model_copy(update={"regularizer": Regularizer()})
        clip = tiny_clip()
        started = without_loss.start(clip, QUICK)
        prompts = set_prompts(clip, scale=0.5)
        context = task_context(clip, stream, stream.tasks[task], started, QUICK)
        earlier = stream.tasks[0].train[:5]
        batch = context.load(np.concatenate([context.task.train[:3], earlier]), new=3)
        query = pooled_output(tiny_clip(), batch.pixels).detach()
        if make is l2p:
            cosines = [cosine_similarity(query, key, dim=-1) for key in prompts.keys]
            nearest = torch.stack(cosines, dim=1).sort(dim=1).values[:, -2:]
            value = 0.5 * (2 - nearest.sum(dim=1)).mean()
            name, key = "prompts.keys", prompts.keys
        else:
            value = 1.0 * (1 - cosine_similarity(query[:3], prompts.keys[1], dim=-1)).mean()
            name, key = "prompts.keys.1", prompts.keys[1]
        (grad,) = torch.autograd.grad(value, [key])
        torch.testing.assert_close(with_keys[name], grad, rtol=1e-4, atol=1e-6)
        with started.update.begin(context):
            rest = sum(term.item() for term in context.losses(batch))
        assert float(with_keys["loss"]) == pytest.approx(rest + value.item(), rel=1e-5)


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_run_trains_prompts_keys_and_projections(method: Method, stream: Stream, tmp_path: Path):
    clip, listener, control = tiny_clip(), LossRecorder(), images("control", 4, 3)
    plain = retouch.teach(
        tiny_clip(), stream, Method(name="frozen"), control=control, settings=QUICK
    )
    start = {n: t.clone() for n, t in clip.model.state_dict().items()}
    results = retouch.teach(
        clip, stream, method, settings=QUICK, control=control, out=tmp_path, callback=listener
    )
    assert results.rows[0] == plain.rows[0], "the same model before the first task"
    assert sum(listener.losses[6:9]) < sum(listener.losses[:3])
    state = clip.model.state_dict()
    changed = {n for n in start if not torch.equal(state[n], start[n])}
    assert changed == {"visual_projection.weight", "text_projection.weight"}
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
    assert torch.equal(fresh.image_features(random_images()), clip.image_features(random_images()))


@pytest.mark.slow
def test_an_expert_is_trained_in_its_own_task_only(stream: Stream, tmp_path: Path):
    retouch.teach(tiny_clip(), stream, dualprompt(), settings=QUICK, out=tmp_path)
    for number in range(3):
        delta = Delta.load(tmp_path / "deltas" / f"task-{number + 1:02}.safetensors")
        prompts = {n.removeprefix("prompts.") for n in delta.changes if n.startswith("prompts.")}
        assert prompts == {"general", f"experts.{number}", f"keys.{number}", "learned"}
        assert all(change.xor.any() for change in delta.changes.values())


@pytest.mark.slow
def test_an_interrupted_run_resumes_to_the_same_bits(
    method: Method, short_stream: Stream, tmp_path: Path
):
    """In the second task, in bfloat16 and in micro-batches; `test_recipes.py` has float32."""
    changes = {"epochs": 1, "micro_batch": 5, "precision": "bf16"}
    options: dict[str, Any] = {"settings": QUICK.model_copy(update=changes)}
    uninterrupted = tiny_clip()
    retouch.teach(uninterrupted, short_stream, method, **options)
    options |= {"out": tmp_path, "checkpoint_seconds": 0}
    stop = Stop(3, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        retouch.teach(tiny_clip(), short_stream, method, callback=stop, **options)
    clip = tiny_clip()
    assert retouch.teach(clip, short_stream, method, **options).finished
    assert fingerprint(clip.model) == fingerprint(uninterrupted.model)


def test_the_seed_determines_the_prompts(method: Method):
    prints = []
    for seed in (0, 0, 1):
        clip = tiny_clip()
        torch.rand(seed + 1)  # the global random state has no effect
        method.start(clip, QUICK.model_copy(update={"seed": seed}))
        prints.append(fingerprint(clip.model))
    assert prints[0] == prints[1] != prints[2]


@pytest.mark.slow
def test_only_the_key_loss_trains_the_keys(stream: Stream):
    quick = QUICK.model_copy(update={"epochs": 1})
    for make in METHODS.values():
        with_loss, without_loss, start = tiny_clip(), tiny_clip(), tiny_clip()
        retouch.teach(with_loss, stream, make(), settings=quick)
        free = make().model_copy(update={"regularizer": Regularizer()})
        retouch.teach(without_loss, stream, free, settings=quick)
        make().start(start, QUICK)
        for clip, unchanged in ((without_loss, True), (with_loss, False)):
            keys = [keys_of(prompts_of(each.model)) for each in (clip, start)]
            for a, b in zip(*keys, strict=True):
                assert torch.equal(a, b) is unchanged


@pytest.mark.slow
def test_start_replaces_prompts_that_learned_nothing(stream: Stream):
    expected, clip = tiny_clip(), tiny_clip()
    retouch.preview(clip, stream, dualprompt(), settings=QUICK)
    retouch.preview(clip, stream, l2p(), settings=QUICK.model_copy(update={"seed": 5}))
    for each in (expected, clip):
        retouch.teach(each, stream, l2p(), settings=QUICK)
    assert fingerprint(clip.model) == fingerprint(expected.model)
    assert torch.equal(
        clip.image_features(random_images()), expected.image_features(random_images())
    )


@pytest.mark.slow
def test_a_model_with_prompts_can_learn_more(stream: Stream, tmp_path: Path):
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
    with pytest.raises(UserError, match=r"task 3 needs an expert.*only 2.*update\.tasks=3"):
        retouch.teach(clip, first, method, settings=QUICK)


def test_settings_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match=r"update\.expert=\(3, 4, 5\).*which has 2"):
        Method(name="dualprompt", update=DualPrompts()).start(tiny_clip(), QUICK)
    with pytest.raises(UserError, match="different layers"):
        dualprompt(general=(1, 2)).start(tiny_clip(), QUICK)
    with pytest.raises(UserError, match=r"update\.top=5.*pool of 3"):
        Method(name="l2p", update=PromptPool(pool=3)).start(tiny_clip(), QUICK)
    with pytest.raises(UserError, match="is not supported: its architecture is unknown"):
        l2p().start(own_pair(), QUICK)
