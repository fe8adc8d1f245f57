"""Models whose weights are not contiguous in memory, or share it."""

import torch
from torch import Tensor, nn


def transposed(tensor: Tensor) -> Tensor:
    """The same matrix, stored in column-major order."""
    return tensor.t().contiguous().t()


def network_with_transposed_weight(seed: int = 0) -> nn.Module:
    """Two layers, the second of which has a weight that is not contiguous."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 5))
    model[1].weight.data = transposed(model[1].weight.data)
    return model


class TiedWeights(nn.Module):
    """One matrix under two names, a third name for its transposed view, and a matrix apart."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.untied = nn.Parameter(torch.randn(3, 4))
        self.first = nn.Parameter(torch.randn(5, 4))
        self.second = self.first
        self.transposed = nn.Parameter(self.first.detach().t())
