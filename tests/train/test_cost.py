"""The estimate of what a run takes."""

from dataclasses import replace
from typing import ClassVar

import pytest
from recipes_for_tests import QUICK, quick
from tiny import images, tiny_clip
from torch import Tensor

import retouch
from retouch.clip.frozen.keyed_images import Pixels
from retouch.clip.hf.model import HuggingFaceClip
from retouch.clip.text.tokens import Tokens, num_prompts
from retouch.data import Stream
from retouch.data.stores.string_array import StringArray
from retouch.methods import RECIPES, Method, Settings, recipe
from retouch.methods.regularizers.feature_replay import FeatureReplay
from retouch.sparse import fingerprint
from retouch.train.estimate import Measurement, delta_bytes, measure
from retouch.train.plan import plan_stream
from retouch.train.work import work


def test_the_work_of_a_run_is_counted(stream: Stream):
    """Three tasks of two classes with 24 images each, in batches of 8: replay doubles the last.

    The buffer holds 3 images, so no more than 3 of the 4 earlier classes of the last task.
    """
    settings = Settings(epochs=2, batch=8)
    amount = work(stream, recipe("er"), settings, control=stream.test)
    assert amount.trained == 24 * 2 + 2 * (24 * 2 * 2)
    assert amount.trained_prompts == 3 * 2 * (2 + (2 + 2) + (2 + 3))
    assert amount.step_prompts == 2 + 3
    assert (amount.evaluated, amount.evaluated_prompts) == (4 * 48, 4 * 12)


class PromptCounter(HuggingFaceClip):
    """Counts the prompts of every batch that is trained on."""

    counts: ClassVar[list[int]] = []

    def pair_features(self, pixels: Pixels, tokens: Tokens) -> tuple[Tensor, Tensor]:
        self.counts.append(num_prompts(tokens))
        return super().pair_features(pixels, tokens)


def trained_prompts(method: Method, stream: Stream, settings: Settings) -> list[int]:
    """The prompts of each step, without those of scoring weights."""
    counter = tiny_clip()
    counter.__class__ = PromptCounter
    PromptCounter.counts = []
    # With random scores, nothing is encoded before the first step of a task.
    update = {"update.score": "random"} if "score" in type(method.update).model_fields else {}
    retouch.teach(counter, stream, method.with_change(update), settings=settings)
    return PromptCounter.counts


FEATURE_REPLAY = [name for name, r in RECIPES.items() if isinstance(r.regularizer, FeatureReplay)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "captions"),
    [
        *((quick(name), False) for name in FEATURE_REPLAY),
        (quick("spu+"), True),
        (quick("spu+", regularizer__weight=0), False),
        (quick("spu+", regularizer__words=0.3), False),
        (quick("er"), True),
        (quick("er").model_copy(update={"loss": "cross-entropy"}), False),
    ],
)
@pytest.mark.usefixtures("all_words")
def test_the_prompts_of_training_are_counted(method: Method, stream: Stream, captions: bool):
    """Those of all known classes, where features are replayed; each image's own, if it has one."""
    if captions:
        texts = StringArray(f"a photo, {i % 5}" if i % 2 else "" for i in range(len(stream.train)))
        stream = replace(stream, train=replace(stream.train, captions=texts))
    settings = Settings(epochs=2, batch=24, lr=1e-3)
    counts = trained_prompts(method, stream, settings)
    amount = work(stream, method, settings, control=None)
    assert len(counts) == 6
    assert amount.trained_prompts == pytest.approx(sum(counts), rel=0.12)
    assert amount.step_prompts == pytest.approx(max(counts), rel=0.2)
    assert amount.step_prompts >= max(counts)


def test_what_a_method_trains_is_measured_on_a_copy(stream: Stream):
    clip = tiny_clip()
    before = fingerprint(clip.model)
    steps = {n: measure(clip, stream, quick(n), QUICK, images=4) for n in ("frozen", "flyp", "spu")}
    first = sum(p.numel() for n, p in clip.model.named_parameters() if n.endswith("fc1.weight"))
    assert steps["frozen"].passes == 0
    assert steps["frozen"].num_trainable == 0
    assert steps["flyp"].num_trainable == clip.size
    assert delta_bytes(steps["spu"].selection) == pytest.approx(5.2 * first / 10, rel=0.05)
    assert steps["flyp"].passes > 1
    assert fingerprint(clip.model) == before
    assert not any(p.grad is not None for p in clip.model.parameters())


def test_the_time_of_a_run_grows_with_its_work(stream: Stream):
    step = Measurement(image=1.0, prompt=0.0, passes=3.0, selection={}, num_trainable=1)
    seconds = {}
    for name in ("flyp", "er", "er+lwf", "zscl"):
        method = quick(name)
        amount = work(stream, method, QUICK, control=None)
        seconds[name] = step.seconds(amount, method.regularizer.extra_passes(QUICK))
    assert seconds["flyp"] < seconds["er"] < seconds["er+lwf"]
    assert seconds["flyp"] < seconds["zscl"]
    frozen = Measurement(image=1.0, prompt=0.0, passes=0.0, selection={}, num_trainable=0)
    amount = work(stream, quick("frozen"), QUICK, control=None)
    assert frozen.seconds(amount) == amount.evaluated


def test_an_estimate(stream: Stream):
    clip, control = tiny_clip(), images("control", 4, 3)
    about = plan_stream(clip, stream, quick("spu"), settings=QUICK, control=control).cost()
    assert about.seconds > 0
    assert about.memory > 4 * clip.size
    assert about.disk > 3 * delta_bytes(about.selection)
    bare = plan_stream(
        clip, stream, quick("spu", store_images=False), settings=QUICK, control=control
    ).cost()
    assert bare.disk == int(3 * delta_bytes(bare.selection))


def test_frozen_blocks_are_counted_once_per_image(stream: Stream):
    clip = tiny_clip()
    measured = {
        reuse: measure(clip, stream, quick("spu+"), replace_setting(reuse), images=8)
        for reuse in (True, False)
    }
    assert measured[True].frozen > 0
    assert measured[False].frozen == 0
    amount = work(stream, quick("spu+"), QUICK, control=None)
    assert amount.images == len(stream.train) + len(stream.test)
    once = replace(measured[True], frozen=measured[True].frozen + 1)
    assert once.seconds(amount) == pytest.approx(measured[True].seconds(amount) + amount.images)
    assert clip.frozen is None


def replace_setting(reuse: bool) -> Settings:
    return QUICK.model_copy(update={"reuse_frozen": reuse})
