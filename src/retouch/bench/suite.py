"""A suite is a table as data: rows, columns, settings, and the paper's numbers."""

from importlib.resources import files
from os.path import expanduser
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, model_validator

from retouch.arguments import check_arguments
from retouch.bench.joined import StreamOptions
from retouch.builtin.demo_settings import demo_settings
from retouch.data.formats.text_files import read_text
from retouch.errors import UserError, first_problem
from retouch.methods import Settings
from retouch.text.parsing import parse_user_yaml

SUITES = (
    "table1",
    "layers",
    "scores",
    "rate",
    "buffer",
    "localization",
    "neuron",
    "task-length",
    "samples",
    "efficiency",
    "demo",
    "pareto",
    "mtil",
    "mtil-2",
    "x-tail",
)
"""The suites that come with the package."""
Kind = Literal["table", "efficiency", "pareto"]


def _check_settings(settings: dict[str, Any]) -> dict[str, Any]:
    if "seed" in settings:
        raise ValueError(
            f"seed={settings['seed']} is not for a suite; name the seeds when you run it"
        )
    Settings(**settings)
    return settings


PartialSettings = Annotated[dict[str, Any], AfterValidator(_check_settings)]
"""Some fields of `Settings`; the others have their defaults."""
DataSet = Annotated[str, AfterValidator(expanduser)]
"""The name of a data set, or where it is."""


class SuiteRow(BaseModel):
    """A row of the table: a method, and how it differs from its recipe and from the suite."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    method: str
    change: dict[str, Any] = {}
    """Changes of the recipe, as in `update.rate: 0.05`."""
    settings: PartialSettings = {}
    lr: tuple[float, ...] = ()
    """For a pareto suite, the learning rates to try. Default: those of the suite."""
    tasks: int | None = None
    paper: dict[str, tuple[float | None, float | None, float | None]] = {}
    """By data set, and `average`: Acc., F. and C.; or Acc. In., Avg. F. and C. Drop. Of a stream of
    several data sets, under the suite's name: Transfer, Average and Last.
    """
    cost: tuple[str, str, str] | None = None
    """The paper's numbers in the table of efficiency."""


class BenchDefaults(BaseModel):
    """What the rows are run on, unless the suite or a row states something else."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    models: tuple[str, ...] = ()
    datasets: tuple[str, ...]
    control: str | None = None
    reference: str | None = None
    tasks: int
    settings: PartialSettings = {}
    """What differs from the paper's settings, which are the defaults of `Settings`."""
    replay: float | None = None
    """Images in the replay buffer; by default the data set's number, or the recipe's."""
    small_model: bool = False
    """Whether methods have their rates for small models (`Method.small_model_lr`), not the paper's.
    """
    pareto: tuple[float, ...] = ()
    """The learning rates of a pareto suite that states none."""


class Suite(BaseModel):
    """A table: what to run, and what the paper reports."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str
    """The title of the table."""
    source: str = ""
    """Where the paper has it."""
    kind: Kind = "table"
    """What is made of the cells: a `table`, a table of costs (`efficiency`), or curves (`pareto`).
    """
    name: str = ""
    """The name of the suite; for a file, its stem."""
    datasets: tuple[DataSet, ...] = ()
    """Data sets, one column each. Default: those of the model."""
    stream: StreamOptions | None = None
    """If given, all data sets form one stream, in their order, and there is one column for it."""
    control: DataSet | None = None
    """The control set. Default: that of the model."""
    tasks: int | None = None
    """How many tasks a data set is split into. Default: that of the model."""
    settings: PartialSettings = {}
    """Fields of `Settings` to change."""
    lr: tuple[float, ...] = ()
    """For a pareto suite, the learning rates to try."""
    rows: tuple[SuiteRow, ...]
    """The rows: methods, and how each differs from its recipe."""

    @model_validator(mode="after")
    def _check_rates(self) -> Self:
        rates = next((rates for rates in (self.lr, *(row.lr for row in self.rows)) if rates), ())
        if self.stream and self.kind != "table":
            raise ValueError(f"a suite of the kind {self.kind} cannot have a stream; leave one out")
        if self.stream and not self.datasets:
            raise ValueError("a stream is made of data sets, and there are none; name them")
        if rates and self.kind != "pareto":
            raise ValueError(
                f"lr={list(rates)} is for a suite of the kind pareto; here, write settings: "
                f"{{lr: {rates[0]:g}}}"
            )
        return self

    def only(self, methods: list[str] | None) -> "Suite":
        """The suite with some of its rows.

        Args:
            methods: Methods or names of rows. None: all.
        """
        if not methods:
            return self
        known = {name for row in self.rows for name in (row.method, row.name)}
        for method in methods:
            if method not in known:
                names = ", ".join(dict.fromkeys(row.method for row in self.rows))
                raise UserError(f"the suite {self.name} has no method {method!r}; it has {names}")
        rows = tuple(r for r in self.rows if r.method in methods or r.name in methods)
        return self.model_copy(update={"rows": rows})


@check_arguments(name="give the name of a suite, or the path of a YAML file")
def load_suite(name: str | Path) -> Suite:
    """A suite by its name, or from a YAML file.

    Args:
        name: One of `SUITES`, or the path of a YAML file.
    """
    name = str(name)
    if name in SUITES:
        text = (files("retouch.bench") / "suites" / f"{name}.yaml").read_text("utf-8")
    elif Path(name).is_file():
        text = read_text(Path(name))
    else:
        raise UserError(
            f"there is no suite {name!r}: it is neither one of {', '.join(SUITES)} nor a YAML file"
        )
    content = parse_user_yaml(text, name)
    if not isinstance(content, dict):
        raise UserError(f"{name} is not a suite: it needs a title and rows, as in docs/bench.md")
    try:
        return Suite(**{"name": Path(name).stem, **content})
    except ValidationError as why:
        raise UserError(f"{name}, {first_problem(why)}") from None


def load_defaults(name: Literal["paper", "builtin"]) -> BenchDefaults:
    """The paper's setting, or that of the built-in model and pictures, which is the demo's."""
    content = yaml.safe_load((files("retouch.bench") / f"{name}.yaml").read_text("utf-8"))
    if name == "builtin":
        demo = demo_settings()
        content["settings"] = demo.training
        content |= {"tasks": demo.tasks, "replay": demo.replay, "small_model": True}
    return BenchDefaults(**content)
