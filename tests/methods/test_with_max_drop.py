"""Bound the control accuracy that any method may lose."""

from retouch.methods import recipe
from retouch.methods.merging import BoundedDrop, Interpolate, with_max_drop
from retouch.train.run_folder import method_of


def test_the_bound_applies_after_the_methods_own_step():
    bounded = with_max_drop(recipe("wise-ft"), 0.5)
    assert isinstance(bounded.after_task, BoundedDrop)
    assert isinstance(bounded.after_task.after, Interpolate)
    assert method_of({"method": bounded.model_dump(mode="json")}) == bounded
    assert with_max_drop(bounded, 2).after_task.after == bounded.after_task.after
