"""Several processes that train together: rendezvous, collectives, FSDP2."""

import os


def launched_world_size() -> int:
    """How many processes the launcher started, before or after they have joined."""
    return int(os.environ.get("WORLD_SIZE", "1"))
