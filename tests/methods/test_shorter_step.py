"""Part of what a task changed is taken back."""

import pytest
import torch
from tiny import images, tiny_clip
from torch import Tensor

import retouch
from retouch.data import Stream
from retouch.evaluate import Results
from retouch.methods import BalancedReplay, Method, Settings
from retouch.methods.after_task.merging import ShorterStep
from retouch.methods.updates.full_finetune import FullFinetune
from retouch.methods.updates.selective import SelectiveUpdate
from retouch.train import Callback

QUICK = Settings(epochs=2, batch=8, lr=5e-3, weight_decay=0.1)


def teach(alpha: float | None, tasks: int = 1, sparse: bool = True) -> dict[str, Tensor]:
    clip = tiny_clip()
    stream = Stream.split(images("train", 6, 8), images("test", 6, 4), tasks=tasks, order=0)
    after = {} if alpha is None else {"after_task": ShorterStep(alpha=alpha)}
    update = SelectiveUpdate(unit="neuron") if sparse else FullFinetune()
    method = Method(name="mine", update=update, replay=BalancedReplay(size=12), **after)
    retouch.teach(clip, stream, method, settings=QUICK)
    return {name: p.detach().clone() for name, p in clip.model.named_parameters()}


@pytest.mark.slow
@pytest.mark.parametrize("sparse", [True, False])
def test_the_change_of_a_task_is_scaled(sparse: bool):
    start = dict(tiny_clip().model.named_parameters())
    end, quarter = teach(None, sparse=sparse), teach(0.25, sparse=sparse)
    moved = 0
    for name, before in start.items():
        expected = torch.lerp(before.detach(), end[name], 0.25)
        assert torch.equal(quarter[name], expected)
        moved += int((end[name] != before).sum())
    assert moved


@pytest.mark.slow
def test_one_keeps_all_and_zero_nothing():
    assert all(
        torch.equal(a, b) for a, b in zip(teach(None).values(), teach(1.0).values(), strict=True)
    )
    start = dict(tiny_clip().model.named_parameters())
    nothing = teach(0.0, tasks=2)
    assert all(torch.equal(nothing[name], p) for name, p in start.items())


class Snapshots(Callback):
    """The weights before the first task and after each."""

    def __init__(self) -> None:
        self.clip, self.weights = tiny_clip(), []

    def on_evaluate(self, results: Results) -> None:
        state = self.clip.model.state_dict()
        self.weights.append({name: t.clone() for name, t in state.items()})


@pytest.mark.slow
def test_what_a_task_changed_is_scaled_once():
    """A later task leaves what it does not select as it is."""
    stream = Stream.split(images("train", 6, 8), images("test", 6, 4), tasks=2, order=0)
    method = Method(name="mine", update=SelectiveUpdate(), after_task=ShorterStep())
    snapshots = Snapshots()
    retouch.teach(snapshots.clip, stream, method, settings=QUICK, callback=snapshots)
    before, first, second = snapshots.weights
    changed = {name: first[name] != before[name] for name in before}
    moved_on = {name: second[name] != first[name] for name in before}
    only_first = {name: changed[name] & ~moved_on[name] for name in before}
    assert sum(int(mask.sum()) for mask in only_first.values()) > 0
    assert sum(int((changed[name] & moved_on[name]).sum()) for name in before) > 0
