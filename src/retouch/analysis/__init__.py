"""Looking inside: numbers about where a CLIP keeps what it knows, and which weights tasks share."""

from retouch.analysis.overlap import Overlap, read_overlap

__all__ = ["Overlap", "read_overlap"]
