"""The paper's tables as suites: any subset, on any model, by one command."""

from retouch.bench.engines import Done, Engine, Failed, Serial, engine
from retouch.bench.runner import Bench, Incomplete
from retouch.bench.suite import SUITES, Suite, load_suite

__all__ = [
    "SUITES",
    "Bench",
    "Done",
    "Engine",
    "Failed",
    "Incomplete",
    "Serial",
    "Suite",
    "engine",
    "load_suite",
]
