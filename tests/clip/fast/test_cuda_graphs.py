"""When a pass is captured and when it is replayed, tested on a CPU with a fake graph."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from fake_graphs import FakeGraph, fake_graphs  # noqa: F401
from torch import Tensor, nn

from retouch.clip.fast import cuda_graphs, graph_capture
from retouch.clip.fast.cuda_graphs import KEPT_GRAPHS, KEPT_SIGNATURES, GraphRecorder, has_hooks
from retouch.clip.fast.graph_capture import ForwardPass

pytestmark = pytest.mark.usefixtures("fake_graphs")


class TwoTowers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.image, self.text = nn.Linear(4, 3), nn.Linear(5, 3)


def passes(model: TwoTowers, seed: int = 0) -> list[ForwardPass]:
    rng = torch.Generator().manual_seed(seed)
    images, texts = torch.randn(2, 4, generator=rng), torch.randn(6, 5, generator=rng)
    return [
        ForwardPass("images", lambda x: model.image(x).tanh(), [images]),
        ForwardPass("texts", lambda x: model.text(x).tanh(), [texts]),
    ]


def step(model: TwoTowers, recorder: GraphRecorder | None, seed: int) -> list[Tensor]:
    """One training step on both towers; returns outputs and gradients to compare."""
    both = passes(model, seed)
    a, b = recorder(both) if recorder else [forward_pass() for forward_pass in both]
    model.zero_grad()
    (a @ b.T).square().sum().backward()
    grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    with torch.no_grad():
        for p in model.parameters():
            if p.grad is not None:
                p -= 0.1 * p.grad
    return [a.detach(), b.detach(), *grads]


def test_replayed_passes_equal_eager_ones():
    plain, model = TwoTowers(), TwoTowers()
    recorder = GraphRecorder(model)
    for seed in range(6):
        for a, b in zip(step(plain, None, seed), step(model, recorder, seed), strict=True):
            assert torch.equal(a, b), seed
    assert FakeGraph.captured == 2, "each tower once, on its third pass"


def test_a_second_pass_before_the_first_ran_backward_is_eager():
    """The activations of the first must not be overwritten."""
    model = TwoTowers()
    recorder = GraphRecorder(model)
    for seed in range(3):
        step(model, recorder, seed)
    first, second = (recorder(passes(model, seed))[0] for seed in (7, 8))
    grads = [torch.autograd.grad(out.sum(), model.image.weight)[0] for out in (first, second)]
    for seed, grad in zip((7, 8), grads, strict=True):
        expected = passes(model, seed)[0]().sum()
        assert torch.allclose(grad, torch.autograd.grad(expected, model.image.weight)[0])
    abandoned = recorder(passes(model, 9))[0]
    del abandoned  # its backward pass can no longer run
    for a, b in zip(recorder(passes(model, 9)), passes(model, 9), strict=True):
        assert torch.equal(a, b())
    assert FakeGraph.captured == 2


def test_two_shapes_of_a_tower_share_memory_and_are_never_in_use_together():
    model = TwoTowers()
    recorder = GraphRecorder(model)
    large = ForwardPass("images", passes(model)[0].run, [torch.ones(9, 4)])
    for seed in range(3):
        step(model, recorder, seed)
        recorder([large])[0].sum().backward()
    before = FakeGraph.replayed
    pending = recorder(passes(model))[0]
    assert FakeGraph.replayed == before + 2
    with torch.no_grad():
        assert torch.equal(recorder([large])[0], large())
    recorder([large])[0].sum().backward()
    assert FakeGraph.replayed == before + 2, "the other shape ran eagerly"
    pending.sum().backward()
    recorder([large])
    assert FakeGraph.replayed == before + 3


def test_passes_without_gradients_are_captured_separately():
    """They do not depend on which weights are trainable, and leave the other graphs alone."""
    model = TwoTowers()
    recorder = GraphRecorder(model)
    for seed in range(3):
        step(model, recorder, seed)
    assert FakeGraph.captured == 2
    for seed, trainable in enumerate([True, False, True, False]):  # as in evaluations
        model.image.weight.requires_grad_(trainable)
        with torch.no_grad():
            for a, b in zip(recorder(passes(model, seed)), passes(model, seed), strict=True):
                assert torch.equal(a, b())
    assert FakeGraph.captured == 4, "each tower once, on its third pass"
    model.image.weight.requires_grad_(True)
    before = FakeGraph.replayed
    step(model, recorder, 3)
    assert (FakeGraph.captured, FakeGraph.replayed) == (4, before + 2)


def test_nothing_uses_the_memory_of_a_pass_that_has_not_run_backward():
    plain, model = TwoTowers(), TwoTowers()
    recorder = GraphRecorder(model)
    for seed in range(3):
        step(plain, None, seed)
        step(model, recorder, seed)
        with torch.no_grad():
            recorder(passes(model, seed))
    expected, output = passes(plain, 7)[0](), recorder(passes(model, 7))[0]
    before = FakeGraph.replayed
    with torch.no_grad():
        assert torch.equal(recorder(passes(model, 8))[0], passes(model, 8)[0]())
    assert FakeGraph.replayed == before
    for out in (expected, output):
        out.sum().backward()
    assert torch.equal(model.image.weight.grad, plain.image.weight.grad)


@pytest.mark.parametrize("change", ["freeze", "forward", "storage"])
def test_a_changed_model_is_captured_again(change: str):
    model = TwoTowers()
    recorder = GraphRecorder(model)
    for seed in range(3):
        step(model, recorder, seed)
    if change == "freeze":
        model.image.bias.requires_grad_(False)
    elif change == "forward":
        model.image.forward = lambda x: 2 * nn.functional.linear(x, model.image.weight)
    else:
        model.image.weight.data = model.image.weight.data.clone()
    plain = passes(model, 5)[0]().detach()
    for _ in range(3):
        assert torch.equal(recorder(passes(model, 5))[0], plain)
    assert FakeGraph.captured == 4


def test_the_graphs_of_a_few_sets_of_trained_weights_are_kept():
    """A method that trains now some weights and now others captures each set once."""
    plain, model = TwoTowers(), TwoTowers()
    recorder = GraphRecorder(model)
    for phase in range(6):
        for each in (plain, model):
            each.image.weight.requires_grad_(phase % 2 == 0)
        for seed in range(3):
            for a, b in zip(step(plain, None, seed), step(model, recorder, seed), strict=True):
                assert torch.equal(a, b), (phase, seed)
    assert FakeGraph.captured == 4, "both towers, twice"


def test_of_many_sets_of_trained_weights_the_oldest_graphs_are_freed():
    model = TwoTowers()
    recorder = GraphRecorder(model)
    sets = [(a, b) for a in (True, False) for b in (True, False)] + [(True, True)]
    for image, text in sets:
        model.image.bias.requires_grad_(image)
        model.text.bias.requires_grad_(text)
        for seed in range(3):
            step(model, recorder, seed)
    assert FakeGraph.captured == 2 * KEPT_SIGNATURES, "the first set is known again"
    model.image.weight.requires_grad_(False)  # a fifth set, in place of the second
    for seed in range(3):
        step(model, recorder, seed)
    model.image.weight.requires_grad_(True)
    model.text.bias.requires_grad_(False)
    step(model, recorder, 0)
    assert FakeGraph.captured == 2 * KEPT_SIGNATURES + 2
    for seed in range(2):
        step(model, recorder, seed)
    assert FakeGraph.captured == 2 * KEPT_SIGNATURES + 4, "the second set was freed"


def test_of_many_shapes_the_graph_that_is_unused_for_longest_is_freed():
    model = TwoTowers()
    recorder = GraphRecorder(model)

    def run(rows: int) -> None:
        recorder([ForwardPass("images", model.image, [torch.ones(rows, 4)])])

    for rows in range(1, KEPT_GRAPHS + 1):
        for _ in range(3):
            run(rows)
    run(1)
    for _ in range(3):
        run(KEPT_GRAPHS + 1)  # in place of that of two rows
    captured = KEPT_GRAPHS + 1
    run(1)
    assert FakeGraph.captured == captured
    run(2)
    assert FakeGraph.captured == captured + 1, "captured again at once"


def test_a_pass_goes_on_with_a_function_of_its_output():
    """As one graph for each function, with other inputs in every step."""
    plain, model = TwoTowers(), TwoTowers()
    recorder = GraphRecorder(model)

    def loss(scale: float, encoded: Tensor, goal: Tensor) -> Tensor:
        return scale * (encoded - goal).square().mean()

    for seed in range(6):
        goal = torch.randn(2, 3)
        for scale in (1.0, 3.0):
            values = []
            for each in (plain, model):
                of = partial(loss, scale)
                whole = passes(each, seed)[0].then(("loss", scale), of, [goal])
                (value,) = recorder([whole]) if each is model else [whole()]
                (value / 2).backward()
                values.append(value)
            assert torch.equal(*values)
            assert torch.equal(plain.image.weight.grad, model.image.weight.grad)
    assert FakeGraph.captured == 2, "one for each scale"


def test_an_unchanged_model_is_checked_once(monkeypatch: pytest.MonkeyPatch):
    model, checks = TwoTowers(), 0
    recorder = GraphRecorder(model)

    def signature(*args: object) -> list[object]:
        nonlocal checks
        checks += 1
        return [checks > 3]

    monkeypatch.setattr(cuda_graphs, "graph_signature", signature)
    with recorder.unchanged():
        for seed in range(4):
            step(model, recorder, seed)
            with torch.no_grad():
                recorder(passes(model, seed))
    assert (checks, FakeGraph.captured) == (2, 4), "with and without gradients"
    with recorder.unchanged():
        step(model, recorder, 0)
        recorder.clear()
        step(model, recorder, 1)
    assert (checks, FakeGraph.captured) == (4, 4), "what is freed is not used"
    for seed in range(3):
        step(model, recorder, seed)
    assert (checks, FakeGraph.captured) == (7, 6), "then before every pass"


def test_a_frozen_model_has_no_backward_pass():
    model = TwoTowers().requires_grad_(False)
    recorder = GraphRecorder(model)
    for seed in range(5):
        a, _ = recorder(passes(model, seed))
        assert torch.equal(a, passes(model, seed)[0]())
        assert not a.requires_grad
    assert (FakeGraph.captured, FakeGraph.replayed) == (2, 6)


@pytest.mark.parametrize("free_at", [5, 12])
def test_a_failed_capture_is_cleaned_up_and_tried_again_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, free_at: int
):
    class FailingGraph(FakeGraph):
        def __init__(self, forward_pass: ForwardPass, pool: object) -> None:
            super().__init__(forward_pass, pool)
            if blocked:
                raise RuntimeError("somebody holds a gradient")

    stream = SimpleNamespace(device=torch.device("cuda", 3))
    aborted: list[object] = []
    monkeypatch.setattr(graph_capture, "CapturedGraph", FailingGraph)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(graph_capture, "_abort_capture", lambda *args: aborted.append(args))
    plain, model, blocked = TwoTowers(), TwoTowers(), True
    recorder = GraphRecorder(model)
    for seed in range(12):
        blocked = seed < free_at
        for a, b in zip(step(plain, None, seed), step(model, recorder, seed), strict=True):
            assert torch.equal(a, b), seed
        captured = 0 if seed < 2 else 2 if seed < 8 else 4
        assert FakeGraph.captured == captured, "tried on the 3rd pass and on the 9th"
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    if free_at == 5:  # gone by the second attempt
        assert aborted == [(3, (0, number)) for number in (1, 2)]
        assert FakeGraph.replayed
        assert not said
    else:
        assert aborted == [(3, (0, number)) for number in (1, 2, 3, 4)]
        assert not FakeGraph.replayed
        assert [line.split(" is not captured")[0] for line in said] == [
            "the encoder of images",
            "the encoder of texts",
        ]
        assert all("somebody holds a gradient" in line for line in said)


def test_a_failed_capture_does_not_spoil_later_ones(monkeypatch: pytest.MonkeyPatch):
    """torch refuses to capture into a pool of which one capture has failed."""
    recording: set[object] = set()

    class StrictGraph(FakeGraph):
        def __init__(self, forward_pass: ForwardPass, pool: object) -> None:
            if pool in recording:
                raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
            recording.add(pool)
            super().__init__(forward_pass, pool)
            if blocked:
                raise RuntimeError("somebody holds a gradient")
            recording.remove(pool)

    monkeypatch.setattr(graph_capture, "CapturedGraph", StrictGraph)
    stream = SimpleNamespace(device=torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(graph_capture, "_abort_capture", lambda *args: None)
    model, blocked = TwoTowers(), False
    recorder = GraphRecorder(model)
    with torch.no_grad():
        for seed in range(3):
            recorder(passes(model, seed))
    assert (FakeGraph.captured, FakeGraph.replayed) == (2, 2), "evaluated"
    for seed in range(9):
        blocked = seed == 2
        step(model, recorder, seed)
    assert FakeGraph.captured == 6, "two failed on the 3rd pass and were captured on the 9th"
    assert FakeGraph.replayed == 4


def test_hooks_are_found():
    model = TwoTowers()
    assert not has_hooks(model)
    handle = model.image.register_forward_hook(lambda *args: None)
    assert has_hooks(model)
    handle.remove()
    assert not has_hooks(model)
