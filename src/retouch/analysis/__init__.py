"""The paper's analyses: where knowledge is, what neurons look at, which weights tasks share.

Each is a package with its computation, its figure and its text.
"""

from retouch.analysis.overlap.compute import Overlap, read_overlap

__all__ = ["Overlap", "read_overlap"]
