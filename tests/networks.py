"""Small networks whose weights are changed as a task would, for the tests of `retouch.sparse`."""

import torch
from torch import nn

from retouch.sparse import Delta, Selection, Snapshot, select


def network(dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Module:
    """Two linear layers with a norm between them."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(30, 50), nn.LayerNorm(50), nn.Linear(50, 7)).to(dtype)


def random_scores(model: nn.Module, seed: int) -> dict[str, torch.Tensor]:
    """Scores of the matrices."""
    torch.manual_seed(seed)
    return {n: torch.rand(p.shape) for n, p in model.named_parameters() if p.ndim == 2}


@torch.no_grad()
def perturb(model: nn.Module, selection: Selection, amount: float = 0.1) -> None:
    """Add noise to the selected entries."""
    for name, index in selection.items():
        parameter = model.get_parameter(name)
        noise = amount * torch.randn(index.count).to(parameter)
        index.scatter(parameter, index.gather(parameter) + noise)


def learn(model: nn.Module, seed: int = 1, rate: float = 0.1) -> Delta:
    """Change some entries of a network, and return the delta of that."""
    selection = select(random_scores(model, seed), rate)
    snapshot = Snapshot(model, selection)
    perturb(model, selection)
    return snapshot.delta({"method": "spu", "rate": rate, "classes": ["a", "b"]})
