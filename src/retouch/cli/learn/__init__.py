"""`retouch learn`: from options to a plan, and from a plan to a run."""
