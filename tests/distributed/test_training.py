"""Training on several ranks gives the same result as on one with the same batch."""

import os
import signal
import threading
import time
from collections import Counter
from dataclasses import replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distributed_runs import (
    SETTINGS,
    SendSigterm,
    assert_same_run,
    float64_clip,
    float64_siglip,
    selected_positions,
    train,
    two_task_stream,
)
from rank_processes import run_ranks, run_ranks_or_errors
from recipes_for_tests import one_for_each_part, quick
from tiny import CLASSES, images, tiny_clip
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils._python_dispatch import TorchDispatchMode

import retouch
from retouch.clip import Batch, Features
from retouch.clip.losses import pair_loss
from retouch.clip.text.zero_shot import classifier
from retouch.data.stores.string_array import StringArray
from retouch.distributed import collectives
from retouch.evaluate import Results
from retouch.evaluate.image_features import image_features
from retouch.evaluate.predict import predict
from retouch.methods import RECIPES, Regularizer
from retouch.train import Callback, signals
from retouch.train.callbacks.callback import CallbackList

pytestmark = pytest.mark.slow

SINGLE_PRECISION = {"slca", "l2p", "dualprompt"}
"""Methods with parts that compute in single precision, whatever the model does."""


def train_by_recipe(name: str) -> dict[str, Any]:
    # A larger eps: AdamW takes a full step for a gradient that is zero except for rounding.
    epochs = 2 if name == "spu-code" else 1  # its learning rate begins at zero
    settings = SETTINGS.model_copy(update={"eps": 1e-2, "epochs": epochs})
    clip = tiny_clip() if name in SINGLE_PRECISION else None
    return train(name, clip, settings=settings, evaluate_each_task=False)


@pytest.mark.parametrize("name", one_for_each_part(scores=True))
def test_every_method_on_two_ranks(name: str):
    single = train_by_recipe(name)
    start = (tiny_clip() if name in SINGLE_PRECISION else float64_clip()).model.state_dict()
    moved = max(np.abs(single["weights"][n] - t.numpy()).max() for n, t in start.items())
    tolerance = 1e-5 if name in SINGLE_PRECISION else 1e-10
    assert moved > 10 * tolerance or RECIPES[name].trains_nothing
    assert_same_run(single, run_ranks(2, train_by_recipe, name), tolerance)


ONE_EPOCH = SETTINGS.model_copy(update={"epochs": 1})
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {"settings": SETTINGS},
    # Of 4 prompts, three ranks have 2, 1 and 1.
    "micro-batches": {"settings": ONE_EPOCH.model_copy(update={"micro_batch": 1})},
    "fewer images than ranks": {"settings": ONE_EPOCH.model_copy(update={"batch": 2})},
    "one joint loss, whole neurons": {"changes": {"objective": "joined", "update__unit": "neuron"}},
    "label-aware": {"changes": {"loss": "label-aware"}},
    "a different caption per image": {"stream": "captions"},
    "SigLIP": {"clip": "siglip"},
    "SigLIP, label-aware, micro-batches": {
        "clip": "siglip",
        "changes": {"loss": "label-aware"},
        "settings": ONE_EPOCH.model_copy(update={"micro_batch": 2}),
    },
}


def train_variant(variant: str, folder: Path | None = None) -> dict[str, Any]:
    options = {"settings": ONE_EPOCH, **VARIANTS[variant]}
    if options.get("clip"):
        options["clip"] = float64_siglip()
    if options.get("stream"):
        stream = two_task_stream()
        stream.train.captions = StringArray(f"a photo {n} of the {n % 5}" for n in range(28))
        options["stream"] = stream
    return train("spu", out=folder, **options)


@pytest.mark.parametrize("variant", VARIANTS)
def test_spu_on_one_two_and_three_ranks(variant: str, tmp_path: Path):
    single = train_variant(variant, tmp_path / "1")
    expected = selected_positions(tmp_path / "1")
    assert len(expected) == 2 * 4
    for num_ranks in (2, 3) if variant == "default" else (3,):
        assert_same_run(
            single, run_ranks(num_ranks, train_variant, variant, tmp_path / str(num_ranks)), 1e-12
        )
        assert selected_positions(tmp_path / str(num_ranks)) == expected
        files = [sorted(p.name for p in (tmp_path / n).rglob("*")) for n in ("1", str(num_ranks))]
        assert files[0] == files[1], "rank 0 writes the files that a single process would"


def random_features(count: int, new: int, bias: float | None) -> Features:
    rng = torch.Generator().manual_seed(count)
    image_features = normalize(torch.randn(count, 8, generator=rng, dtype=torch.float64), dim=-1)
    text_features = normalize(torch.randn(5, 8, generator=rng, dtype=torch.float64), dim=-1)
    prompt = torch.randint(5, (count,), generator=rng)
    return Features(
        image_features,
        text_features,
        torch.tensor(10.0).double(),
        Batch(torch.empty(0), {}, prompt, new),
        None if bias is None else torch.tensor([bias]).double(),
    )


def loss_on_this_rank(
    count: int, new: int, bias: float | None, loss: Any, objective: Any
) -> tuple[float, list[Any], int]:
    """This rank's part of the loss, the gradient of its images, the size of the largest tensor."""
    features = random_features(count, new, bias)
    part = collectives.rank_slice(count)
    local = features.images[part].clone().requires_grad_()
    with LargestTensor() as largest:
        value = pair_loss(
            replace(features, images=collectives.gather(local, count)), loss, objective
        )
        (value / collectives.world_size()).backward()
    assert local.grad is not None
    return value.item(), local.grad.tolist(), largest.num_entries


class LargestTensor(TorchDispatchMode):
    """Records the size of the largest tensor that is created."""

    num_entries = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.num_entries = max(self.num_entries, result.numel())
        return result


LOSS_CASES = list(
    product(
        [(60, 60), (60, 31), (7, 5), (2, 2)],
        [None, -3.0],
        ["contrastive", "label-aware"],
        ["summed", "joined"],
    )
)


def losses_on_this_rank() -> list[tuple[float, list[Any], int]]:
    return [loss_on_this_rank(*sizes, *case) for sizes, *case in LOSS_CASES]


@pytest.fixture(scope="module")
def losses_by_rank() -> list[list[tuple[float, list[Any], int]]]:
    """Of all cases, computed by one process group."""
    return run_ranks(3, losses_on_this_rank)


@pytest.mark.parametrize("number", range(len(LOSS_CASES)), ids=map(str, LOSS_CASES))
def test_the_loss_over_ranks_is_that_of_the_whole_batch(
    number: int, losses_by_rank: list[list[tuple[float, list[Any], int]]]
):
    (count, new), *case = LOSS_CASES[number]
    parts = [losses[number] for losses in losses_by_rank]
    value, gradient, _ = loss_on_this_rank(count, new, *case)
    assert sum(part[0] for part in parts) / 3 == pytest.approx(value, rel=1e-12)
    gradients = np.concatenate([np.reshape(part[1], (-1, 8)) for part in parts])
    np.testing.assert_allclose(gradients, gradient, atol=1e-14)
    if count == 60:  # a rank's third of the rows, never the whole matrix
        assert max(part[2] for part in parts) <= 20 * 60


def evaluate_on_this_rank() -> tuple[Any, Any, Any]:
    clip, test = float64_clip(), images("test", 5, 3)
    with torch.no_grad():
        texts = classifier(clip, CLASSES[:2], ["a photo of {}"])  # fewer prompts than ranks
    single_image = image_features(clip, test, np.array([3]))
    return predict(clip, test).tolist(), texts.tolist(), single_image.tolist()


def test_evaluation_is_shared_and_exact():
    predictions, texts, single_image = evaluate_on_this_rank()
    for rank in run_ranks(3, evaluate_on_this_rank):
        assert rank[0] == predictions
        np.testing.assert_allclose(rank[1], texts, atol=1e-14)
        np.testing.assert_allclose(rank[2], single_image, atol=1e-14)


def count_forward_passes() -> tuple[int, int]:
    """How often each tower runs while 129 images and 1,025 prompts are encoded."""
    clip, calls = tiny_clip(), Counter()
    for name in ("image_features", "text_features"):
        setattr(clip, name, partial(_counted, calls, name, getattr(clip, name)))
    many = images("many", 3, 43)
    image_features(clip, many, np.arange(129))
    classifier(clip, [f"red {n}" for n in range(1025)], ["{}"])
    return calls["image_features"], calls["text_features"]


def _counted(calls: Counter[str], name: str, original: Any, *inputs: Any) -> Any:
    calls[name] += 1
    return original(*inputs)


def test_all_ranks_run_the_towers_equally_often():
    """With sharded weights, one rank would otherwise wait for another forever."""
    assert run_ranks(2, count_forward_passes) == [(2, 2), (2, 2)]


def test_traffic_of_a_run():
    """Only the gradients of selected entries and the features are sent, not the model."""
    traffic = run_ranks(2, measure_traffic)[0]
    selected = 4 * int(0.1 * 32 * 64)
    steps = traffic["steps"]
    assert (
        traffic["gradients"] == steps * selected * 8
    )  # float64; of two ranks each sends half, twice
    # Two tasks of two epochs of two steps, and one scoring batch each: an image's feature is sent
    # to the other rank, and its gradient is sent back.
    assert traffic["features"] <= (2 * 4 * 16 + 2 * 4 + steps * 2 * 8) * 16 * 8
    assert traffic.keys() == {"features", "gradients", "scores", "evaluation", "steps"}


def measure_traffic() -> dict[str, int]:
    counter = StepCounter()
    train("spu", callback=counter, control=None)
    return {**collectives.traffic, "steps": counter.steps or 8}


class StepCounter(Callback):
    steps = 0

    def on_step(self, step: int, epoch: int, loss: float) -> None:
        self.steps += 1


def train_until_sigterm(folder: Path, name: str, after: int) -> int:
    """The step at which the run stopped."""
    counter = StepCounter()
    callback = CallbackList(counter, SendSigterm(after))
    with pytest.raises(KeyboardInterrupt):
        train(name, out=folder, callback=callback)
    return counter.steps


def continue_training(folder: Path, name: str) -> dict[str, Any]:
    return train(name, out=folder)


@cache
def uninterrupted(name: str) -> dict[str, Any]:
    return train(name)


class FailAtStep(Callback):
    """Raises ZeroDivisionError after a number of steps."""

    def __init__(self, after: int) -> None:
        self.remaining = after

    def on_step(self, step: int, epoch: int, loss: float) -> None:
        self.remaining -= 1
        if self.remaining == 0:
            raise ZeroDivisionError


@pytest.mark.parametrize(
    ("name", "first_ranks", "then_ranks"),
    [
        ("spu", 2, 3),
        ("spu", 3, 1),
        ("mas", 2, 1),
        ("magmax", 1, 2),
        ("lora-ewc+er", 1, 2),
    ],
)
def test_a_run_continues_on_another_number_of_ranks(
    name: str, first_ranks: int, then_ranks: int, tmp_path: Path
):
    expected = uninterrupted(name)
    if first_ranks == 1:
        with pytest.raises(ZeroDivisionError):
            train(name, out=tmp_path, callback=FailAtStep(6), checkpoint_seconds=0)
    else:
        assert run_ranks(first_ranks, train_until_sigterm, tmp_path, name, 6)[0] == 6
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == (5 if first_ranks == 1 else 6)
    assert (tmp_path / "checkpoint.safetensors").exists()
    if then_ranks == 1:
        assert_same_run(expected, [continue_training(tmp_path, name)], 1e-7)
    else:
        assert_same_run(expected, run_ranks(then_ranks, continue_training, tmp_path, name), 1e-7)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 8


def train_while_rank_2_dies(folder: Path) -> tuple[str, float]:
    """The last rank dies in a step; the error of the others, and after how many seconds."""

    class Dies(Regularizer):
        def loss(self, features: Features) -> Tensor | None:
            if collectives.rank() == 2 and len(features.batch.pixels) and _after_three_calls(self):
                os.kill(os.getpid(), signal.SIGKILL)
            return None

    start = time.monotonic()
    method = quick("spu").model_copy(update={"regularizer": Dies()})
    try:
        retouch.teach(tiny_clip(), two_task_stream(), method, settings=SETTINGS, out=folder)
    except collectives.RankLost as why:
        return str(why), time.monotonic() - start
    raise AssertionError


_CALLS: list[object] = []


def _after_three_calls(part: object) -> bool:
    _CALLS.append(part)
    return len(_CALLS) > 3


def test_a_rank_that_dies_ends_the_others_with_a_message(tmp_path: Path):
    results = run_ranks_or_errors(3, train_while_rank_2_dies, tmp_path)
    for message, seconds in results[:2]:
        assert "another process of this job ended" in message
        assert seconds < 30
    assert isinstance(results[2], collectives.RankLost)
    assert Results.read(tmp_path).begun, "what was learned is kept"


def train_while_rank_1_hangs(folder: Path) -> None:
    """Rank 1 hangs; rank 0 gets SIGTERM while it waits for it."""

    class Hangs(Regularizer):
        def loss(self, features: Features) -> Tensor | None:
            if collectives.rank() == 1:
                time.sleep(3)  # far longer than rank 0 waits
            threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
            return None

    signals.GRACE = 0.5
    method = quick("spu").model_copy(update={"regularizer": Hangs()})
    retouch.teach(tiny_clip(), two_task_stream(), method, settings=SETTINGS, out=folder)


def test_a_rank_that_waits_for_one_that_hangs_still_stops(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    start = time.monotonic()
    results = run_ranks_or_errors(2, train_while_rank_1_hangs, tmp_path)
    assert isinstance(results[0], collectives.RankLost)
    assert time.monotonic() - start < 20
    assert "another process did not answer for 0.5 s" in capfd.readouterr().err
