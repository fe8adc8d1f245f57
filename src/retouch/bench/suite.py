"""A suite is a table as data: rows, columns, settings, and what the paper found."""

from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, model_validator

from retouch.checksummed import parse_yaml
from retouch.data.text_files import read_text
from retouch.errors import UserError, first_problem
from retouch.methods import Settings

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
)
"""The suites that come with the package."""
Kind = Literal["table", "efficiency", "pareto"]


def _check_settings(settings: dict[str, Any]) -> dict[str, Any]:
    if "seed" in settings:
        raise ValueError(f"seed={settings['seed']} is not for a suite; use --seeds")
    Settings(**settings)
    return settings


SomeSettings = Annotated[dict[str, Any], AfterValidator(_check_settings)]
"""Some of the fields of `Settings`; the others keep their defaults."""


class SuiteRow(BaseModel):
    """A row of the table: a method, and how it differs from its recipe and from the suite."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    method: str
    change: dict[str, Any] = {}
    """Of the recipe, as in `update.rate: 0.05`."""
    settings: SomeSettings = {}
    tasks: int | None = None
    paper: dict[str, tuple[float | None, float | None, float | None]] = {}
    """By data set, and `average`: Acc., F. and C.; or Acc. In., Avg. F. and C. Drop."""
    cost: tuple[str, str, str] | None = None
    """The paper's figures in the table of efficiency."""


class BenchDefaults(BaseModel):
    """What the rows are run on, where the suite or a row does not say otherwise."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    models: tuple[str, ...] = ()
    datasets: tuple[str, ...]
    control: str | None = None
    reference: str | None = None
    tasks: int
    settings: SomeSettings = {}
    replay: float | None = None
    """Images to keep; None leaves it to the data set's own number, or to the recipe."""
    lr: dict[str, float] = {}
    """Learning rates of single methods."""
    pareto: tuple[float, ...] = ()
    """The learning rates of a pareto suite that names none."""


class Suite(BaseModel):
    """A table as data: rows, columns and settings, and what the paper found."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str
    """The title of the table."""
    source: str = ""
    """Where the paper has it."""
    kind: Kind = "table"
    """What is made of the cells: a `table`, a table of costs (`efficiency`), or curves (`pareto`).
    """
    name: str = ""
    """The name of the suite; of a file, its stem."""
    datasets: tuple[str, ...] = ()
    """Data sets, one column each. Default: those of the model."""
    control: str | None = None
    """The control set. Default: that of the model."""
    tasks: int | None = None
    """How many tasks a data set is split into. Default: that of the model."""
    settings: SomeSettings = {}
    """Fields of `Settings` to change."""
    lr: tuple[float, ...] = ()
    """For a pareto suite, the learning rates to try."""
    rows: tuple[SuiteRow, ...]
    """The rows: methods, and how each differs from its recipe."""

    @model_validator(mode="after")
    def _rates_are_for_pareto(self) -> Self:
        if self.lr and self.kind != "pareto":
            raise ValueError(
                f"lr={list(self.lr)} is for a suite of the kind pareto; here, write settings: "
                f"{{lr: {self.lr[0]:g}}}"
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
        for asked in methods:
            if asked not in known:
                names = ", ".join(dict.fromkeys(row.method for row in self.rows))
                raise UserError(f"the suite {self.name} has no method {asked!r}; it has {names}")
        kept = tuple(r for r in self.rows if r.method in methods or r.name in methods)
        return self.model_copy(update={"rows": kept})


def load_suite(name: str) -> Suite:
    """A suite by its name, or from a file of your own.

    Args:
        name: One of `SUITES`, or the path of a YAML file.
    """
    if name in SUITES:
        text = (files("retouch.bench") / "suites" / f"{name}.yaml").read_text("utf-8")
    elif Path(name).is_file():
        text = read_text(Path(name))
    else:
        raise UserError(
            f"there is no suite {name!r}: neither one of {', '.join(SUITES)} nor a YAML file"
        )
    content = parse_yaml(text, name)
    if not isinstance(content, dict):
        raise UserError(f"{name} is no suite: write a title and rows, as docs/bench.md shows")
    try:
        return Suite(**{"name": Path(name).stem, **content})
    except ValidationError as why:
        raise UserError(f"{name}, {first_problem(why)}") from None


def load_defaults(name: Literal["paper", "builtin"]) -> BenchDefaults:
    """The paper's setting, or the built-in one."""
    text = (files("retouch.bench") / f"{name}.yaml").read_text("utf-8")
    return BenchDefaults(**yaml.safe_load(text))
