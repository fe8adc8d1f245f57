"""How much does each weight matter for a task? A scorer returns one number per weight.

A scorer is a function of the parameters, the task's losses (see `gradients`) and a seed.
"""

from collections.abc import Callable

import torch

from retouch.sparse.gradients import Losses, Parameters, Scores, mean_gradient
from retouch.sparse.learned_masks import mask, piggyback

Scorer = Callable[[Parameters, Losses, int], Scores]
"""Returns one score per entry of each parameter, from parameters, losses and a seed."""


def gradient(parameters: Parameters, losses: Losses, seed: int = 0) -> Scores:
    """Equation 2 of the paper: the magnitude of the mean gradient, |1/N′ Σ g(x)|."""
    gradients = mean_gradient(parameters, losses)
    return {name: gradient.abs_() for name, gradient in gradients.items()}


def magnitude(parameters: Parameters, losses: Losses, seed: int = 0) -> Scores:
    """The magnitude of the weight itself, whatever the task."""
    return {name: p.detach().abs().float() for name, p in parameters.items()}


def random(parameters: Parameters, losses: Losses, seed: int = 0) -> Scores:
    """Uniform random numbers, drawn on the CPU so that every device gets the same."""
    rng = torch.Generator().manual_seed(seed)
    return {name: torch.rand(p.shape, generator=rng).to(p.device) for name, p in parameters.items()}


SCORERS: dict[str, Scorer] = {
    "gradient": gradient,
    "magnitude": magnitude,
    "random": random,
    "mask": mask,
    "piggyback": piggyback,
}
"""The scorers by name, for the setting `update.score`."""
