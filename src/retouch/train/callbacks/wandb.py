"""Log a run to Weights & Biases, an extra: `pip install retouch[wandb]`."""

from pathlib import Path
from typing import Any

from retouch.errors import UserError
from retouch.evaluate.results import Results
from retouch.train.callbacks.scalars import ScalarLogger


def check_installed() -> None:
    """Refuse at once where the package is missing, before a model is loaded."""
    try:
        import wandb  # noqa: F401
    except ImportError as why:
        raise UserError(f"no Weights & Biases ({why}): pip install 'retouch[wandb]'") from None


class WandB(ScalarLogger):
    """Logs the loss of every step, the accuracies after every task, and the final metrics.

    Without a network, set WANDB_MODE=offline and run `wandb sync` later.

    Args:
        project: The W&B project.
        name: The name of the W&B run.
        config: What is stored with it.
        folder: Where W&B keeps its files, the working directory by default.
    """

    def __init__(
        self,
        project: str,
        name: str | None = None,
        config: dict[str, Any] | None = None,
        folder: str | Path | None = None,
    ) -> None:
        super().__init__()
        check_installed()
        import wandb

        directory = None if folder is None else str(folder)
        try:
            self._run: Any = wandb.init(project=project, name=name, config=config, dir=directory)
        except (wandb.Error, OSError, RuntimeError) as why:  # RuntimeError: no home folder
            raise UserError(
                f"Weights & Biases cannot log this run to {project} ({why}); run `wandb login`, or "
                "set WANDB_MODE=offline and `wandb sync` it later"
            ) from None
        for curve, step in (("loss/*", "step"), ("accuracy/*", "tasks learned")):
            self._run.define_metric(curve, step_metric=step)

    def __exit__(self, *error: object) -> None:
        self._run.finish(exit_code=1 if error and error[0] is not None else 0)

    def log(self, name: str, value: float, step: int) -> None:
        axis = "step" if name.startswith("loss/") else "tasks learned"
        self._run.log({name: value, axis: step})

    def on_evaluate(self, results: Results) -> None:
        super().on_evaluate(results)
        self._run.summary.update(results.metrics())
