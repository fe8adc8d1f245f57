"""Suites in which all data sets form one stream: MTIL, X-TAIL, and a user's own."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ConfigDict, PositiveInt

from retouch.builtin.domains import DOMAINS
from retouch.data import Images, Stream
from retouch.data.few_shot import balanced_subset, few_shot
from retouch.data.registry import BUILTIN
from retouch.data.stream import Choices, Twins


class StreamOptions(BaseModel):
    """How the data sets of a suite are joined into one stream."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    choices: Choices = "domain"
    """What a test image is classified among: the classes of its own data set, or all."""
    twins: Twins = "separate"
    """Whether two classes of the same name count as one."""
    first_template: bool = False
    """Train with the first of a data set's templates, not with its own training prompt."""
    shots: PositiveInt | None = None
    """Train with this many images of every class; the run's seed chooses them. Default: all."""
    test_images: PositiveInt | None = None
    """Evaluate on this many images of every data set, always the same. Default: all."""
    builtin: tuple[str, ...] = tuple(f"{BUILTIN}{name}" for name in DOMAINS)
    """What takes the place of the data sets where the built-in model is run."""


def joined_stream(
    sets: Mapping[str, tuple[Images, Images]], options: Mapping[str, Any], tasks: int, seed: int
) -> Stream:
    """One stream of several data sets.

    Args:
        sets: Training and test images, by the name of the data set.
        options: Fields of `StreamOptions`.
        tasks: How many tasks each data set is split into.
        seed: Chooses the images of a few-shot stream, and the order of classes over tasks.
    """
    chosen = StreamOptions(**options)
    streams = {}
    for name, (all_train, all_test) in sets.items():
        train, test = all_train, all_test
        if chosen.first_template:
            train = replace(train, prompt=train.templates[0])
        if chosen.shots:
            train = few_shot(train, chosen.shots, seed)
        if chosen.test_images:
            test = balanced_subset(test, chosen.test_images)
        streams[name] = Stream.split(train, test, tasks=tasks, order=seed)
    return Stream.join(streams, chosen.choices, chosen.twins)
