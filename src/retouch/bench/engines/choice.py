"""Which engine runs the cells."""

from retouch.bench.engines.engine import Engine, Serial
from retouch.bench.engines.processes import ProcessEngine
from retouch.bench.engines.ray import RayEngine
from retouch.distributed import collectives
from retouch.errors import UserError


def engine(
    on: str | None = None,
    jobs: int | None = None,
    device: str = "auto",
    gpus_per_cell: float | None = None,
    cpus_per_cell: float | None = None,
) -> Engine:
    """The engine for these options.

    Args:
        on: "ray" or the address of a Ray cluster; None for this machine.
        jobs: How many cells to run at a time. On this machine each gets a process of its own.
        device: The device of a cell, such as "cpu" or "cuda".
        gpus_per_cell: GPUs per cell on Ray; 0.5 lets two cells share one.
        cpus_per_cell: CPUs per cell on Ray.
    """
    check_engine(on, jobs, gpus_per_cell, cpus_per_cell)
    if on is not None:
        return RayEngine(on, jobs, device, gpus_per_cell, cpus_per_cell)
    if jobs is None or jobs == 1:
        return Serial()
    return ProcessEngine(jobs, device)


def check_engine(
    on: str | None,
    jobs: int | None,
    gpus_per_cell: float | None = None,
    cpus_per_cell: float | None = None,
) -> None:
    """Raise if options contradict each other."""
    if collectives.world_size() > 1 and (on is not None or jobs is not None):
        raise UserError(
            "torchrun lets several processes train one cell together, while `jobs` and `on` run "
            "several cells side by side; choose one of the two"
        )
    if on is None and (gpus_per_cell is not None or cpus_per_cell is not None):
        raise UserError(
            "gpus_per_cell and cpus_per_cell are only for Ray (on='ray'); on one machine, `jobs` "
            "divides its CPU cores and GPUs"
        )
    if on is not None and on != "ray" and not on.startswith("ray://"):
        raise UserError(f"on={on!r}: use 'ray' (a cluster here, or a new one) or 'ray://HOST:PORT'")
