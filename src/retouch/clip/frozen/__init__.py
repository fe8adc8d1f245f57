"""Lower blocks that a run never changes, computed once per image and once per prompt."""
