"""Which weights move, and moving only those. Works on any torch module; knows nothing of CLIP."""

from retouch.sparse.delta import Delta, Snapshot, difference, fingerprint
from retouch.sparse.delta_file import Header, movements, read_header, read_selection
from retouch.sparse.freeze import only
from retouch.sparse.locate import KINDS, block_names, locate, neuron_axis
from retouch.sparse.losses import Losses
from retouch.sparse.merge import in_order, join, merge
from retouch.sparse.movement import Movement, by_block
from retouch.sparse.optim import SparseAdamW
from retouch.sparse.rows import linear_layers
from retouch.sparse.score import SCORERS, Scorer
from retouch.sparse.select import Chosen, Selection, select

__all__ = [
    "KINDS",
    "SCORERS",
    "Chosen",
    "Delta",
    "Header",
    "Losses",
    "Movement",
    "Scorer",
    "Selection",
    "Snapshot",
    "SparseAdamW",
    "block_names",
    "by_block",
    "difference",
    "fingerprint",
    "in_order",
    "join",
    "linear_layers",
    "locate",
    "merge",
    "movements",
    "neuron_axis",
    "only",
    "read_header",
    "read_selection",
    "select",
]
