"""Which weights move, and moving only those. Works on any torch module; knows nothing of CLIP."""

from retouch.sparse.delta import Delta, Snapshot, fingerprint
from retouch.sparse.freeze import only
from retouch.sparse.locate import KINDS, block_names, locate, neuron_axis
from retouch.sparse.losses import Losses
from retouch.sparse.optim import SparseAdamW
from retouch.sparse.score import SCORERS, Scorer
from retouch.sparse.select import Chosen, Selection, select

__all__ = [
    "KINDS",
    "SCORERS",
    "Chosen",
    "Delta",
    "Losses",
    "Scorer",
    "Selection",
    "Snapshot",
    "SparseAdamW",
    "block_names",
    "fingerprint",
    "locate",
    "neuron_axis",
    "only",
    "select",
]
