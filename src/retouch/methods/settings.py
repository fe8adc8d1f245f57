"""How a task is trained, whatever the method."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError

from retouch.errors import UserError, first_problem

Positive = Annotated[int, Field(gt=0)]
Beta = Annotated[float, Field(ge=0, lt=1)]


def _count_or_all(value: Any) -> Any:
    if value == "all" or (type(value) is int and value > 0):
        return value
    raise ValueError("should be a number of images, 1 or more, or 'all'")


CountOrAll = Annotated[int | Literal["all"], PlainValidator(_count_or_all)]


class Settings(BaseModel):
    """The hyperparameters of training.

    The defaults are the paper's (the weight decay is that of its released code).
    `train.defaults` chooses others to suit the data.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    if not TYPE_CHECKING:  # type checkers take the signature from the fields

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as why:
                unknown = [name for name in values if name not in type(self).model_fields]
                names = f"; the settings are {', '.join(type(self).model_fields)}"
                raise UserError(f"{first_problem(why)}{names if unknown else ''}") from None

    epochs: Annotated[int, Field(ge=0)] = 10
    """Passes over a task's images. Raise it for tasks of few images."""
    batch: Annotated[int, Field(ge=2)] = 128
    """New images per step; replayed ones come on top. At least 2, as the loss compares pairs."""
    lr: Annotated[float, Field(gt=0)] = 7.5e-6
    """The peak learning rate of AdamW. It matters more than any other setting: methods that train
    few weights need a higher one.
    """
    steps: Positive | None = None
    """Steps per task, instead of epochs: as many for a small task as for a large one."""
    domain_lr: dict[str, Annotated[float, Field(gt=0)]] = {}
    """In a stream of several data sets, the rate of those that have another than `lr`, by name."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The share of the target that is spread over all other answers. For models with a softmax
    loss.
    """
    weight_decay: Annotated[float, Field(ge=0)] = 0.2
    """AdamW's weight decay, on what is trained."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """AdamW's decay rates of the two moments."""
    eps: Annotated[float, Field(ge=0)] = 1e-8
    """AdamW's term for numerical stability."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seeds every random choice of the run: the order of images, replay, selections."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """What the towers compute in. `bf16` is faster on hardware that has units for it."""
    compile: bool = False
    """Compile the towers: slow to start, then faster, above all on a GPU."""
    cuda_graphs: bool = False
    """On a GPU, capture towers that are not compiled as CUDA graphs: no compiler, few launches."""
    micro_batch: Positive | None = None
    """Hold activations of at most this many images or prompts at a time; the gradients stay the
    same.
    """
    shard: bool = False
    """Shard the frozen weights over the ranks; the result stays the same."""
    control_part: CountOrAll = 2000
    """How many control images are checked after each task, as many of each class as possible and
    at least one; before the first task and after the last, all are. `"all"`: all every time, as is
    always done where a method bounds what may be lost (`max_drop`).
    """
    reuse_frozen: bool | None = None
    """Compute visual blocks that no task changes once per image, and keep their activations; on a
    CPU also attention and neurons that do not change in the lowest block that does. The result
    stays the same, for models above 20 million weights up to rounding. None: on a CPU, where it was
    measured.
    """

    def of_domain(self, name: str) -> "Settings":
        """The settings for the tasks of one data set.

        Args:
            name: The name of the data set.
        """
        return self.model_copy(update={"lr": self.domain_lr.get(name, self.lr)})

    @property
    def adamw(self) -> dict[str, Any]:
        """The arguments of AdamW."""
        return self.model_dump(include={"lr", "betas", "eps", "weight_decay"})
