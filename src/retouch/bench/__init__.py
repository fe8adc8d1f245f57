"""The paper's tables as suites: any part of them, on any model, with one command."""

from retouch.bench.engines.choice import engine
from retouch.bench.engines.engine import Engine, Serial
from retouch.bench.engines.events import CellResult, Failed
from retouch.bench.runner import Bench, Incomplete
from retouch.bench.suite import SUITES, Suite, load_suite

__all__ = [
    "SUITES",
    "Bench",
    "CellResult",
    "Engine",
    "Failed",
    "Incomplete",
    "Serial",
    "Suite",
    "engine",
    "load_suite",
]
