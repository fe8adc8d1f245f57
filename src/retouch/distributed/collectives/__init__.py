"""Collective operations between the ranks of a job. In a single process they do nothing.

Every rank knows the whole plan of a step, since everything random follows from the seed and the
position in the run. It reads and encodes its own slice, and the slices are put together here. The
rest of the code never asks how many ranks there are.
"""

from retouch.distributed.collectives.broadcast import broadcast, broadcast_str, broadcast_tensors
from retouch.distributed.collectives.gather import all_gather, gather, reduce_scatter
from retouch.distributed.collectives.reduce import all_reduce, all_reduce_scalar, any_rank
from retouch.distributed.collectives.store import rank0_first, reports_error
from retouch.distributed.collectives.world import (
    RankLost,
    begin,
    end,
    is_rank0,
    largest_rank_slice,
    rank,
    rank_slice,
    short_message,
    traffic,
    world_size,
)

__all__ = [
    "RankLost",
    "all_gather",
    "all_reduce",
    "all_reduce_scalar",
    "any_rank",
    "begin",
    "broadcast",
    "broadcast_str",
    "broadcast_tensors",
    "end",
    "gather",
    "is_rank0",
    "largest_rank_slice",
    "rank",
    "rank0_first",
    "rank_slice",
    "reduce_scatter",
    "reports_error",
    "short_message",
    "traffic",
    "world_size",
]
