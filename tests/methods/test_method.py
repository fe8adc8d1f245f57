"""A method of one's own, its parts, and settings that are refused."""

from pathlib import Path

import pytest
import torch
from recipes_for_tests import QUICK, quick
from tiny import images, tiny_clip
from torch import Tensor

import retouch
from retouch.clip import Features
from retouch.data import Stream
from retouch.errors import UserError
from retouch.methods import (
    RECIPES,
    AfterTask,
    Method,
    Regularizer,
    TaskContext,
    TaskUpdate,
    recipe,
)
from retouch.methods.updates.full_finetune import FullFinetune
from retouch.sparse import Delta, fingerprint


@pytest.fixture(params=RECIPES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


class Anchor(Regularizer):
    weight: float = 1.0

    def loss(self, features: Features) -> Tensor | None:
        return self.weight * features.texts.square().sum(dim=1).mean() * features.scale


class Halve(AfterTask):
    """Halve the selected entries."""

    def end(self, context: TaskContext, update: TaskUpdate) -> None:
        with torch.no_grad():
            for name, index in update.selection.items():
                weight = context.clip.model.get_parameter(name)
                index.scatter(weight, index.gather(weight) / 2)


@pytest.mark.slow
def test_regularizer_and_after_task_have_an_effect(stream: Stream, tmp_path: Path):
    base = Method(name="mine", update=FullFinetune(where="visual_projection"))
    halved = Method(name="mine", update=FullFinetune(where="visual_projection"), after_task=Halve())
    anchored = Method(name="mine", update=FullFinetune(where="logit_scale"), regularizer=Anchor())
    free = Method(name="mine", update=FullFinetune(where="logit_scale"))
    prints = []
    for number, method in enumerate((base, halved, anchored, free)):
        clip = tiny_clip()
        out = tmp_path / str(number)
        results = retouch.teach(clip, stream, method, settings=QUICK, out=out)
        assert results.method == "mine"
        prints.append(fingerprint(clip.model))
    assert len(set(prints)) == 4
    fresh = tiny_clip()
    for number in range(3):  # the delta includes what happens after the task
        Delta.load(tmp_path / "1" / "deltas" / f"task-{number + 1:02}.safetensors").apply(
            fresh.model
        )
    assert fingerprint(fresh.model) == prints[1]


def test_unknown_names_and_settings_are_refused():
    with pytest.raises(UserError, match="no method 'spo'; there are frozen"):
        recipe("spo")
    with pytest.raises(UserError, match=r"update.rat=1.*update\.rate"):
        recipe("spu", {"update.rat": 1})
    with pytest.raises(UserError, match=r"update\.rate=2: .*less than or equal to 1"):
        recipe("spu", {"update.rate": 2})
    with pytest.raises(UserError, match="objective"):
        recipe("spu", {"objective": "nothing"})
    with pytest.raises(UserError, match="tunes"):
        recipe("spu", {"tunes.rate": 2})
    with pytest.raises(UserError, match="score='fame' is unknown"):
        retouch.teach(
            tiny_clip(),
            Stream.split(images("a", 2, 3), images("b", 2, 2), 1),
            recipe("spu", {"update.score": "fame"}),
        )
    assert recipe("spu", {"update.rate": 0.05, "objective": "joined"}).objective == "joined"


@pytest.mark.slow
def test_a_model_frozen_by_its_owner_learns_and_stays_frozen(stream: Stream):
    clip = tiny_clip()
    clip.model.requires_grad_(False)
    before = fingerprint(clip.model)
    retouch.teach(clip, stream, quick("spu"), settings=QUICK)
    assert fingerprint(clip.model) != before
    assert not any(p.requires_grad for p in clip.model.parameters())


def test_a_part_is_chosen_by_the_name_of_its_class():
    method = recipe("spu+", {"update": "FullFinetune", "after_task": "Interpolate"})
    assert isinstance(method.update, FullFinetune)
    assert type(method.after_task).__name__ == "Interpolate"
    assert method.replay == RECIPES["spu+"].replay
    none = recipe("spu+", {"regularizer": "none", "after_task": "none", "replay": "none"})
    assert type(none.regularizer) is Regularizer
    assert type(none.after_task) is AfterTask
    then = recipe("spu+", {"after_task": "Interpolate", "after_task.alpha": 0.25})
    assert then.after_task.model_dump() == {"alpha": 0.25}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"update": "Everything"}, "update=Everything: there is no such part; there are none, "),
        ({"after_task": "LoRA"}, "after_task=LoRA: there is no such part"),
        ({"loss": "mine"}, "Input should be 'contrastive', 'label-aware' or 'cross-entropy'"),
    ],
)
def test_a_part_that_is_none_is_refused(changes: dict[str, str], problem: str):
    with pytest.raises(UserError, match=problem):
        recipe("spu+", changes)


def test_a_part_of_ones_own_is_chosen_by_its_class_or_its_full_name():
    for name in ("Halve", f"{__name__}.Halve"):
        assert type(recipe("spu", {"after_task": name}).after_task) is Halve

    class Halve_(AfterTask):
        """Another class of that name."""

    Halve_.__name__ = "Halve"
    with pytest.raises(UserError, match=r"there is no such part; .*\.Halve, .*\.Halve_"):
        recipe("spu", {"after_task": "Halve"})


def test_parts_inside_others_can_be_changed():
    changes = {"after_task.after": "Interpolate", "after_task.after.alpha": 0.25}
    bounded = recipe("spu-bounded", {"after_task.tries": 3, **changes}).after_task
    assert bounded.model_dump() == {"max_drop": 1.0, "tries": 3, "after": {"alpha": 0.25}}
    with pytest.raises(UserError, match=r"after_task\.after=LoRA: there is no such part"):
        recipe("spu-bounded", {"after_task.after": "LoRA"})
    with pytest.raises(UserError, match=r"did you mean after_task\.after\.alpha"):
        recipe("spu-bounded", {**changes, "after_task.after.alhpa": 1})
    with pytest.raises(UserError, match=r"update=\{\}: there is no such part"):
        recipe("spu", {"update": {}})
