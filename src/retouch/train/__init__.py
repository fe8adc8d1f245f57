"""Training on a stream of tasks: the loop, checkpoints, run folders, and continuing a run."""

from retouch.train.api import preview, teach
from retouch.train.callbacks.callback import Callback
from retouch.train.continue_run import continue_run
from retouch.train.plan import Plan, plan
from retouch.train.run_folder.read import OpenRun, is_run, open_run

__all__ = [
    "Callback",
    "OpenRun",
    "Plan",
    "continue_run",
    "is_run",
    "open_run",
    "plan",
    "preview",
    "teach",
]
