"""The paper's tables as suites: any subset, on any model, by one command."""

from retouch.bench.grid import Bench
from retouch.bench.suite import SUITES, Suite, load_suite

__all__ = ["SUITES", "Bench", "Suite", "load_suite"]
