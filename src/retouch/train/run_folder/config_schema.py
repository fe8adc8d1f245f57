"""What `config.yaml` may hold; `run_folder.config` writes it."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from retouch.data.stream import Choices, Twins
from retouch.files.checksummed import Count, Document
from retouch.methods import Settings


def result_settings(settings: Settings) -> dict[str, Any]:
    """The settings that the result depends on: a run may be resumed with or without sharding."""
    return settings.model_dump(mode="json", exclude={"shard"})


def _check_settings(values: dict[str, Any]) -> dict[str, Any]:
    """Refuse settings that `result_settings` does not return."""
    expected = result_settings(Settings(**values))
    for name in [*expected, *values]:
        if values.get(name) != expected.get(name) or name not in values:
            raise ValueError(f"{name} is missing, or of another type")
    return values


class PairsIdentity(Document):
    """The fingerprint of images with captions, see `data.identity`."""

    images: Count
    files: str
    labels: str


class ImagesIdentity(PairsIdentity):
    """The fingerprint of labeled images."""

    classes: Count


class DomainConfig(Document):
    """A data set among several, see `Domain`."""

    name: str
    classes: dict[str, str]
    prompt: str
    templates: Annotated[list[str], Field(min_length=1)]


class DataConfig(Document):
    """What the images show, and how they are divided into tasks."""

    prompt: str
    templates: Annotated[list[str], Field(min_length=1)]
    classes: list[str]
    """Class names by label. The state of a method refers to these labels."""
    tasks: list[list[str]]
    """The classes of each."""
    images: list[Count]
    """How many each task has."""
    choices: Choices
    twins: Twins
    domains: list[DomainConfig]

    @model_validator(mode="after")
    def _is_consistent(self) -> "DataConfig":
        if len(self.images) != len(self.tasks):
            raise ValueError(f"there are {len(self.tasks)} tasks, and images of {len(self.images)}")
        known = {name for domain in self.domains for name in domain.classes}
        classes = known & set(self.classes) if self.domains else set(self.classes)
        if unknown := [name for task in self.tasks for name in task if name not in classes]:
            raise ValueError(f"{unknown[0]!r:.80} is a class of a task, but not of the data")
        return self


class PlacesConfig(Document):
    """Where model and images are, on which the result does not depend."""

    model: str
    train: str
    test: str
    control: str | None
    reference: str | None


class RunConfig(Document):
    """The content of `config.yaml`."""

    weights: str
    """The fingerprint of the model before the first task."""
    method: dict[str, Any]
    """Its parts and their settings; see `run_folder.method_of`."""
    settings: Annotated[dict[str, Any], AfterValidator(_check_settings)]
    """See `Settings`."""
    data: DataConfig
    train: ImagesIdentity
    test: ImagesIdentity
    control: ImagesIdentity | None
    reference: PairsIdentity | None
    """Where the method uses reference pairs."""
    learned_before: Annotated[Count, Field(alias="learned before")]
    """How many tasks an earlier run had learned, where this run continues one."""
    places: PlacesConfig
