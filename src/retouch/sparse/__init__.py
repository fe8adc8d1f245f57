"""Which weights move, and moving only those. Works on any torch module; knows nothing of CLIP."""

from retouch.sparse.change_stats import ChangeStats, by_block
from retouch.sparse.delta import Delta, Snapshot, difference, fingerprint
from retouch.sparse.delta_file import Header, read_change_stats, read_header, read_selection
from retouch.sparse.freeze import trainable_only
from retouch.sparse.gradients import Losses
from retouch.sparse.locate import KINDS, block_names, locate, neuron_axis
from retouch.sparse.merge import in_order, join, merge
from retouch.sparse.neuron_linear import linear_layers
from retouch.sparse.optim import SparseAdamW
from retouch.sparse.score import SCORERS, Scorer
from retouch.sparse.select import Selection, SparseIndex, select

__all__ = [
    "KINDS",
    "SCORERS",
    "ChangeStats",
    "Delta",
    "Header",
    "Losses",
    "Scorer",
    "Selection",
    "Snapshot",
    "SparseAdamW",
    "SparseIndex",
    "block_names",
    "by_block",
    "difference",
    "fingerprint",
    "in_order",
    "join",
    "linear_layers",
    "locate",
    "merge",
    "neuron_axis",
    "read_change_stats",
    "read_header",
    "read_selection",
    "select",
    "trainable_only",
]
