"""SparseAdamW against torch's own AdamW, entry by entry and bit by bit."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from retouch.errors import UserError
from retouch.sparse import Selection, SparseAdamW, SparseIndex

SHAPES = st.lists(st.lists(st.integers(1, 40), min_size=0, max_size=3), min_size=1, max_size=3)
FLOATS = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])


def bits(tensor: torch.Tensor) -> torch.Tensor:
    dtype = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.detach().reshape(-1).view(dtype)


def random_index(shape: tuple[int, ...], rate: float, rng: torch.Generator) -> SparseIndex:
    size = math.prod(shape)
    count = max(1, int(rate * size))
    if count == size:
        return SparseIndex(shape)
    return SparseIndex(shape, torch.randperm(size, generator=rng)[:count].sort().values)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    shapes=SHAPES,
    dtype=FLOATS,
    rate=st.floats(0.01, 1.0),
    lr=st.floats(1e-6, 1.0),
    beta1=st.floats(0.0, 0.99),
    beta2=st.floats(0.5, 0.9999),
    eps=st.floats(1e-10, 1e-3),
    decay=st.floats(0.0, 0.5),
    steps=st.integers(1, 6),
    accumulate=st.integers(1, 3),
    foreach=st.sampled_from([None, False, True]),
    compact=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_moves_selected_entries_as_adamw_and_no_others(
    shapes, dtype, rate, lr, beta1, beta2, eps, decay, steps, accumulate, foreach, compact, seed
):
    rng = torch.Generator().manual_seed(seed)
    starts = [torch.randn(shape, generator=rng).to(dtype) for shape in shapes]
    selection = Selection(
        {str(i): random_index(tuple(s.shape), rate, rng) for i, s in enumerate(starts)}
    )
    dense = [nn.Parameter(s.clone()) for s in starts]
    sparse = {str(i): nn.Parameter(s.clone()) for i, s in enumerate(starts)}
    options = {"lr": lr, "betas": (beta1, beta2), "eps": eps, "weight_decay": decay}
    reference = torch.optim.AdamW(dense, foreach=foreach, **options)
    ours = SparseAdamW(sparse, selection, foreach=foreach, compact=compact, **options)
    for _ in range(steps):
        for _ in range(accumulate):
            gradients = [torch.randn(s.shape, generator=rng).to(dtype) for s in starts]
            sum((p * g).sum().float() for p, g in zip(dense, gradients, strict=True)).backward()
            sum(
                (p * g).sum().float() for p, g in zip(sparse.values(), gradients, strict=True)
            ).backward()
        for optimizer in (reference, ours):
            optimizer.step()
            optimizer.zero_grad()
    for number, (start, target) in enumerate(zip(starts, dense, strict=True)):
        parameter, entries = sparse[str(number)], selection[str(number)]
        expected = bits(start).clone()
        index = slice(None) if entries.index is None else entries.index
        expected[index] = bits(target)[index]
        assert torch.equal(bits(parameter), expected)


def small_model(seed: int = 0) -> tuple[nn.Module, Selection]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    rng = torch.Generator().manual_seed(seed)
    names = ("0.weight", "2.weight")
    parameters = dict(model.named_parameters())
    return model, Selection({n: random_index(tuple(parameters[n].shape), 0.2, rng) for n in names})


def run(model: nn.Module, optimizer: SparseAdamW, steps: range, autocast: bool = False) -> None:
    for step in steps:
        x = torch.randn(32, 8, generator=torch.Generator().manual_seed(step))
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("autocast", [False, True])
def test_unselected_weights_stay_bit_identical(autocast):
    model, selection = small_model()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = SparseAdamW(dict(model.named_parameters()), selection, lr=0.1, weight_decay=0.5)
    run(model, optimizer, range(20), autocast)
    for name, parameter in model.named_parameters():
        same = bits(parameter) == bits(before[name])
        if name in selection:
            moved = (~same).nonzero().squeeze(1)
            assert torch.equal(moved, selection[name].index)
        else:
            assert same.all()


def test_resumes_to_the_bit():
    model, selection = small_model()
    run(model, SparseAdamW(dict(model.named_parameters()), selection, lr=0.01), range(10))

    half, _ = small_model()
    first = SparseAdamW(dict(half.named_parameters()), selection, lr=0.01)
    run(half, first, range(5))
    saved = first.state_dict(), {k: v.clone() for k, v in half.state_dict().items()}
    first.close()

    other, _ = small_model(seed=1)
    other.load_state_dict(saved[1])
    second = SparseAdamW(dict(other.named_parameters()), selection, lr=0.01)
    second.load_state_dict(saved[0])
    run(other, second, range(5, 10))
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(bits(a), bits(b))


def test_state_of_another_selection_is_refused():
    model, selection = small_model()
    other = Selection({**selection.entries, "0.weight": SparseIndex((16, 8), torch.tensor([0, 1]))})
    state = SparseAdamW(dict(model.named_parameters()), selection).state_dict()
    with pytest.raises(UserError, match="another selection"):
        SparseAdamW(dict(model.named_parameters()), other).load_state_dict(state)


def test_no_dense_gradient_is_kept_and_moments_are_as_short_as_the_selection():
    model, selection = small_model()
    optimizer = SparseAdamW(dict(model.named_parameters()), selection)
    model(torch.randn(4, 8)).sum().backward()
    assert all(model.get_parameter(name).grad is None for name in selection)
    optimizer.step()
    moments = sum(state["exp_avg"].numel() for state in optimizer.state.values())
    assert moments == selection.count


def test_close_removes_the_hooks():
    model, selection = small_model()
    SparseAdamW(dict(model.named_parameters()), selection).close()
    model(torch.randn(4, 8)).sum().backward()
    assert model.get_parameter("0.weight").grad is not None


def test_fused_agrees_to_rounding():
    plain, selection = small_model()
    fused, _ = small_model()
    run(plain, SparseAdamW(dict(plain.named_parameters()), selection, lr=0.01), range(10))
    fast = SparseAdamW(dict(fused.named_parameters()), selection, lr=0.01, fused=True)
    run(fused, fast, range(10))
    for a, b in zip(plain.parameters(), fused.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_scheduler_and_clipping_see_the_entries():
    model, selection = small_model()
    optimizer = SparseAdamW(dict(model.named_parameters()), selection, lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    model(torch.randn(4, 8)).sum().backward()
    entries = optimizer.param_groups[0]["params"]
    norm = nn.utils.clip_grad_norm_(entries, 1e-3)
    assert norm > 1e-3
    assert sum(e.grad.square().sum() for e in entries).sqrt() <= 1.001e-3
    optimizer.step()
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)


def test_empty_selection_is_refused():
    model, _ = small_model()
    empty = Selection({"0.weight": SparseIndex((16, 8), torch.empty(0, dtype=torch.int64))})
    with pytest.raises(UserError, match="empty"):
        SparseAdamW(dict(model.named_parameters()), empty)
