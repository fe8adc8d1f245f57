"""Which weights move, and moving only those. Works on any torch module; knows nothing of CLIP."""

from retouch.sparse.delta.adapter_folder import AdapterFolder, read_adapter
from retouch.sparse.delta.addition import Addition, addition
from retouch.sparse.delta.chain import in_order, join, side_by_side
from retouch.sparse.delta.change_stats import (
    ChangeStats,
    bin_edges,
    block_of,
    by_block,
    by_tensor,
    total_stats,
)
from retouch.sparse.delta.delta import Delta
from retouch.sparse.delta.delta_file import (
    Header,
    read_change_stats,
    read_header,
    read_selection,
)
from retouch.sparse.delta.difference import difference
from retouch.sparse.delta.merge import MergeMode, merge
from retouch.sparse.delta.snapshot import Snapshot
from retouch.sparse.fingerprints import Digests, digest, fingerprint
from retouch.sparse.freeze import trainable_only
from retouch.sparse.gradients import Losses
from retouch.sparse.locate import KINDS, block_names, locate, neuron_axis
from retouch.sparse.neuron_linear import linear_layers
from retouch.sparse.optim import SparseAdamW
from retouch.sparse.score import SCORERS, Scorer
from retouch.sparse.select import Selection, SparseIndex, select

__all__ = [
    "KINDS",
    "SCORERS",
    "AdapterFolder",
    "Addition",
    "ChangeStats",
    "Delta",
    "Digests",
    "Header",
    "Losses",
    "MergeMode",
    "Scorer",
    "Selection",
    "Snapshot",
    "SparseAdamW",
    "SparseIndex",
    "addition",
    "bin_edges",
    "block_names",
    "block_of",
    "by_block",
    "by_tensor",
    "difference",
    "digest",
    "fingerprint",
    "in_order",
    "join",
    "linear_layers",
    "locate",
    "merge",
    "neuron_axis",
    "read_adapter",
    "read_change_stats",
    "read_header",
    "read_selection",
    "select",
    "side_by_side",
    "total_stats",
    "trainable_only",
]
