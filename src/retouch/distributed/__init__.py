"""Several processes that train together: rendezvous, collectives, FSDP2."""

import os

from retouch.errors import UserError


def launched_world_size() -> int:
    """How many processes the launcher started, before or after they have joined."""
    return launcher_number("WORLD_SIZE", default=1, minimum=1)


def launcher_number(name: str, *, default: int, minimum: int = 0) -> int:
    """A number that the launcher passes to each process in an environment variable.

    Args:
        name: The variable, such as `LOCAL_RANK`.
        default: The number if it is not set.
        minimum: The least that it can be.
    """
    value = os.environ.get(name, str(default))
    if not value.strip().isdecimal() or int(value) < minimum:
        raise UserError(
            f"the environment variable {name}={value} is not a whole number of at least "
            f"{minimum}; torchrun sets it. Unset it to run a single process"
        )
    return int(value)
