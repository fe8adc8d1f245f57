"""When a pass is recorded and when it is played: decided here, on a processor.

What a GPU records and plays is stood for by a tape that runs the pass again into fixed places, as a
CUDA graph does; `benchmarks/speed.py` has the real one, with the same bits as without it.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from retouch.clip.fast import cuda_graphs
from retouch.clip.fast.cuda_graphs import ForwardPass, GraphRecorder, has_hooks, leaf_tensors


class Tape(cuda_graphs.CapturedGraph):
    """Inputs, outputs and gradients at fixed places, like a CUDA graph's."""

    made = played = 0

    def __init__(self, each: ForwardPass, pool: object) -> None:
        Tape.made += 1
        self.name, self._run, self._open = each.name, each.run, None
        self._inputs = [tensor.clone() for tensor in each.inputs]
        self._keep = each.run(*self._inputs)
        self.leaves = leaf_tensors(self._keep)
        self.forward = self
        self._out = self._keep.detach().clone()

    def pool(self) -> None:
        """A GPU's memory; a processor has none of its own."""

    def replay(self) -> None:
        Tape.played += 1
        with torch.enable_grad():
            self._keep = self._run(*self._inputs)
        self._out.copy_(self._keep.detach())

    def replay_backward(self, slope: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(self._keep, self.leaves, slope))


@pytest.fixture(autouse=True)
def _tapes(monkeypatch: pytest.MonkeyPatch) -> None:
    Tape.made = Tape.played = 0
    monkeypatch.setattr(cuda_graphs, "CapturedGraph", Tape)
    monkeypatch.setattr(cuda_graphs, "_side_by_side", lambda _, jobs: [job() for job in jobs])
    for name in ("synchronize", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Linear(4, 3), nn.Linear(5, 3)


def passes(model: Two, seed: int = 0) -> list[ForwardPass]:
    rng = torch.Generator().manual_seed(seed)
    images, texts = torch.randn(2, 4, generator=rng), torch.randn(6, 5, generator=rng)
    return [
        ForwardPass("images", lambda x: model.one(x).tanh(), [images]),
        ForwardPass("texts", lambda x: model.two(x).tanh(), [texts]),
    ]


def step(model: Two, recorder: GraphRecorder | None, seed: int) -> list[Tensor]:
    """Move the weights by the gradient of a loss on both, and return all there is to compare."""
    todo = passes(model, seed)
    a, b = recorder(todo) if recorder else [each() for each in todo]
    model.zero_grad()
    (a @ b.T).square().sum().backward()
    slopes = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    with torch.no_grad():
        for p in model.parameters():
            if p.grad is not None:
                p -= 0.1 * p.grad
    return [a.detach(), b.detach(), *slopes]


def test_what_is_played_is_what_would_have_run():
    plain, model = Two(), Two()
    recorder = GraphRecorder(model)
    for seed in range(6):
        for a, b in zip(step(plain, None, seed), step(model, recorder, seed), strict=True):
            assert torch.equal(a, b), seed
    assert Tape.made == 2, "each tower once, when it came for the third time"


def test_a_second_pass_before_the_first_went_back_runs_as_usual():
    """Its activations must not be written over."""
    model = Two()
    recorder = GraphRecorder(model)
    for seed in range(3):
        step(model, recorder, seed)
    first, second = (recorder(passes(model, seed))[0] for seed in (7, 8))
    slopes = [torch.autograd.grad(out.sum(), model.one.weight)[0] for out in (first, second)]
    for seed, slope in zip((7, 8), slopes, strict=True):
        expected = passes(model, seed)[0]().sum()
        assert torch.allclose(slope, torch.autograd.grad(expected, model.one.weight)[0])
    abandoned = recorder(passes(model, 9))[0]
    del abandoned  # nobody can ask for its gradient any more
    for a, b in zip(recorder(passes(model, 9)), passes(model, 9), strict=True):
        assert torch.equal(a, b())
    assert Tape.made == 2


def test_two_shapes_of_a_tower_share_memory_and_are_never_under_way_together():
    model = Two()
    recorder = GraphRecorder(model)
    large = ForwardPass("images", passes(model)[0].run, [torch.ones(9, 4)])
    for seed in range(3):
        step(model, recorder, seed)
        recorder([large])[0].sum().backward()
    before = Tape.played
    waits = recorder(passes(model))[0]
    assert Tape.played == before + 2
    with torch.no_grad():
        assert torch.equal(recorder([large])[0], large())
    recorder([large])[0].sum().backward()
    assert Tape.played == before + 2, "the other shape ran as usual meanwhile"
    waits.sum().backward()
    recorder([large])
    assert Tape.played == before + 3


def test_without_gradients_passes_are_recorded_apart():
    """They do not care which weights move, and cost the others nothing."""
    model = Two()
    recorder = GraphRecorder(model)
    for seed in range(3):
        step(model, recorder, seed)
    assert Tape.made == 2
    for seed, moves in enumerate([True, False, True, False]):  # while it is judged, say
        model.one.weight.requires_grad_(moves)
        with torch.no_grad():
            for a, b in zip(recorder(passes(model, seed)), passes(model, seed), strict=True):
                assert torch.equal(a, b())
    assert Tape.made == 4, "when they came for the third time, each tower once"
    model.one.weight.requires_grad_(True)
    before = Tape.played
    step(model, recorder, 3)
    assert (Tape.made, Tape.played) == (4, before + 2)


def test_while_a_pass_waits_to_go_back_nothing_else_uses_its_memory():
    plain, model = Two(), Two()
    recorder = GraphRecorder(model)
    for seed in range(3):
        step(plain, None, seed)
        step(model, recorder, seed)
        with torch.no_grad():
            recorder(passes(model, seed))
    expected, found = passes(plain, 7)[0](), recorder(passes(model, 7))[0]
    before = Tape.played
    with torch.no_grad():
        assert torch.equal(recorder(passes(model, 8))[0], passes(model, 8)[0]())
    assert Tape.played == before
    for out in (expected, found):
        out.sum().backward()
    assert torch.equal(model.one.weight.grad, plain.one.weight.grad)


@pytest.mark.parametrize("change", ["freeze", "forward", "storage"])
def test_what_is_built_otherwise_is_recorded_anew(change: str):
    model = Two()
    recorder = GraphRecorder(model)
    for seed in range(3):
        step(model, recorder, seed)
    if change == "freeze":
        model.one.bias.requires_grad_(False)
    elif change == "forward":
        model.one.forward = lambda x: 2 * nn.functional.linear(x, model.one.weight)
    else:
        model.one.weight.data = model.one.weight.data.clone()
    plain = passes(model, 5)[0]().detach()
    for _ in range(3):
        assert torch.equal(recorder(passes(model, 5))[0], plain)
    assert Tape.made == 4


def test_where_nothing_moves_there_is_no_way_back():
    model = Two().requires_grad_(False)
    recorder = GraphRecorder(model)
    for seed in range(5):
        a, _ = recorder(passes(model, seed))
        assert torch.equal(a, passes(model, seed)[0]())
        assert not a.requires_grad
    assert (Tape.made, Tape.played) == (2, 6)


def test_what_stood_in_the_way_of_a_recording_may_be_gone_later(monkeypatch: pytest.MonkeyPatch):
    """And what torch leaves of a recording that failed is cleared away."""

    class Stubborn(Tape):
        def __init__(self, each: ForwardPass, pool: object) -> None:
            super().__init__(each, pool)
            if blocked:
                raise RuntimeError("somebody holds a gradient")

    here = SimpleNamespace(device=torch.device("cuda", 3))
    ended: list[object] = []
    monkeypatch.setattr(cuda_graphs, "CapturedGraph", Stubborn)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: here)
    monkeypatch.setattr(cuda_graphs, "_give_up", lambda *which: ended.append(which))
    plain, model, blocked = Two(), Two(), True
    recorder = GraphRecorder(model)
    for seed in range(12):
        blocked = seed < 5
        for a, b in zip(step(plain, None, seed), step(model, recorder, seed), strict=True):
            assert torch.equal(a, b), seed
        assert Tape.made == (0 if seed < 2 else 2 if seed < 8 else 4), "the 3rd time, and the 9th"
    assert ended == [(3, (0, 1))] * 2
    assert Tape.played


@pytest.mark.parametrize("fails", [False, True])
def test_a_recording_goes_back_to_the_stream_it_came_from_whatever_happens(
    fails: bool, monkeypatch: pytest.MonkeyPatch
):
    """And gives back a GPU's memory before it begins, but none that images are sent from."""

    class Graph:
        def capture_begin(self, pool: object, capture_error_mode: str) -> None:
            did.append((pool, capture_error_mode))

        def capture_end(self) -> None:
            did.append("end")
            if fails:
                raise RuntimeError("left in the middle")

    @contextmanager
    def on(stream: str) -> Iterator[None]:
        did.append(stream)
        try:
            yield
        finally:
            did.append("back")

    did: list[object] = []
    monkeypatch.setattr(torch.cuda, "stream", on)
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, partial(did.append, name))
    monkeypatch.setattr(torch._C, "_host_emptyCache", partial(did.append, "all"), raising=False)
    expected = pytest.raises(RuntimeError, match="in the middle") if fails else nullcontext()
    with expected, cuda_graphs._onto(Graph(), (0, 1), "beside"):
        did.append("run")
        if fails:
            raise RuntimeError("somebody holds a gradient")
    begun = [*("synchronize", "empty_cache"), "beside", ((0, 1), "thread_local")]
    assert did == [*begun, "run", "end", "back"]


def test_leaves_are_found_whoever_holds_them():
    a, b = (torch.ones(3, requires_grad=True) for _ in range(2))
    found = leaf_tensors((a * 2 + (b * a).sum()).detach() + a * b + a.exp())
    assert {id(leaf) for leaf in found} == {id(a), id(b)}
    assert leaf_tensors(torch.ones(1)) == []


def test_hooks_watch():
    model = Two()
    assert not has_hooks(model)
    handle = model.one.register_forward_hook(lambda *args: None)
    assert has_hooks(model)
    handle.remove()
    assert not has_hooks(model)
