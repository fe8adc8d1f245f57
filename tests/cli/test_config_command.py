"""Commands whose options are groups of a pydantic model."""

from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
import typer
from pydantic import ValidationError
from typer.testing import CliRunner

from retouch.cli.options import Config, OptionGroup, command


class DataOptions(OptionGroup):
    panel: ClassVar[str] = "Data"

    source: Annotated[str, typer.Argument(metavar="DATA", help="What to learn.")]
    names: Annotated[list[str] | None, typer.Option(help="Repeatable.")] = None
    holdout: Annotated[float, typer.Option(help="Share to test with.")] = 0.2


class OutputOptions(OptionGroup):
    panel: ClassVar[str] = "Output"

    folder: Annotated[Path, typer.Option("--out", "-o", help="Where to write.")]
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False


class ExampleConfig(Config):
    data: DataOptions
    output: OutputOptions


@pytest.fixture
def configs() -> list[ExampleConfig]:
    """What the command was called with."""
    return []


@pytest.fixture
def app(configs: list[ExampleConfig]) -> typer.Typer:
    @command(ExampleConfig)
    def example(config: ExampleConfig) -> None:
        """Say what this example does."""
        configs.append(config)

    app = typer.Typer()
    app.command()(example)
    return app


def invoke(app: typer.Typer, *words: str) -> Any:
    environment = {"COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1"}
    return CliRunner().invoke(app, list(words), env=environment)


def test_help_has_one_panel_per_group(app: typer.Typer):
    text = invoke(app, "--help").output
    assert "Say what this example does." in text
    panels = ["─ Arguments ─", "─ Data ─", "─ Output ─"]
    positions = [text.index(panel) for panel in panels]
    assert positions == sorted(positions)
    data, output = text[positions[1] : positions[2]], text[positions[2] :]
    assert "--holdout" in data
    assert "--out " in output
    assert "-o" in output
    assert "--json" in output
    assert "--holdout" not in output
    assert "DATA" in text[positions[0] : positions[1]]


def test_help_shows_defaults_and_required_options(app: typer.Typer):
    text = invoke(app, "--help").output
    assert "[default: 0.2]" in text
    assert "[required]" in text[text.index("─ Output ─") :]


def test_defaults(app: typer.Typer, configs: list[ExampleConfig]):
    assert invoke(app, "photos", "--out", "run").exit_code == 0
    (config,) = configs
    assert config.data == DataOptions(source="photos")
    assert (config.data.holdout, config.data.names) == (0.2, None)
    assert config.output.folder == Path("run")
    assert config.output.as_json is False


def test_values_reach_their_group(app: typer.Typer, configs: list[ExampleConfig]):
    words = ("photos", "-o", "run", "--names", "a", "--names", "b", "--holdout", "0.5", "--json")
    assert invoke(app, *words).exit_code == 0
    (config,) = configs
    assert config.data.names == ["a", "b"]
    assert config.data.holdout == 0.5
    assert config.output.as_json is True


def test_given_are_the_options_that_were_named_even_with_their_default(
    app: typer.Typer, configs: list[ExampleConfig]
):
    invoke(app, "photos", "--out", "run")
    invoke(app, "photos", "--out", "run", "--holdout", "0.2")
    assert configs[0].given() == {"source", "folder"}
    assert configs[1].given() == {"source", "folder", "holdout"}


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["photos"], "--out"),
        (["--out", "run"], "DATA"),
        (["photos", "--out", "run", "--holdout", "half"], "--holdout"),
        (["photos", "--out", "run", "--lr", "1"], "--lr"),
    ],
)
def test_wrong_usage(
    words: list[str], complaint: str, app: typer.Typer, configs: list[ExampleConfig]
):
    result = invoke(app, *words)
    assert result.exit_code == 2
    assert complaint in result.output
    assert not configs


def test_a_config_cannot_be_changed_or_extended():
    options = DataOptions(source="photos")
    with pytest.raises(ValidationError):
        options.holdout = 0.5  # type: ignore[misc]
    with pytest.raises(ValidationError):
        DataOptions(source="photos", lr=1)  # type: ignore[call-arg]
