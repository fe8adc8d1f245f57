"""Several devices that learn together: who is who, and what they tell each other."""

import os


def launched_world_size() -> int:
    """How many processes were started together, whether they have met or not."""
    return int(os.environ.get("WORLD_SIZE", "1"))
