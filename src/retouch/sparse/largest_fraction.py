"""How much of a change can be kept, if what it costs is bounded?"""

from collections.abc import Callable


def largest_fraction(
    cost: Callable[[], float], move_to: Callable[[float], None], bound: float, tries: int
) -> tuple[float, float]:
    """The largest fraction of a change that was found within a bound, and its cost, by bisection.

    The cost is not monotonic in the fraction, so a larger one may be within the bound too. The
    weights are left at the last fraction that was tried.

    Args:
        cost: Measures the weights as they are.
        move_to: Moves the weights to a fraction of the change, between 0 and 1.
        bound: The largest cost allowed.
        tries: How many fractions to try.
    """
    low, high, low_cost = 0.0, 1.0, 0.0
    for _ in range(tries):
        fraction = (low + high) / 2
        move_to(fraction)
        current = cost()
        if current <= bound:
            low, low_cost = fraction, current
        else:
            high = fraction
    return low, low_cost
