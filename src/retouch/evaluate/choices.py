"""Which classes an image is classified among, with which prompts, and which of them are one class.

This is the one description of it. A run has it from its stream, and later from its config: the
evaluations during the run, `eval`, `classify`, the comparison by class and exports all follow it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from retouch.clip.text.zero_shot import fill_template
from retouch.data.domain import Domain
from retouch.data.images import normalized_name
from retouch.data.stores.image_store import Indices
from retouch.data.stream import Choices, Stream, Twins


class PromptedClass(NamedTuple):
    """A class that a model may name."""

    name: str
    """Its name; the same for two that count as one class."""
    prompts: list[str]
    """Its texts in evaluation; their features are averaged."""
    domain: str
    """Its data set; "" where there is a single one."""


@dataclass(frozen=True)
class ClassChoices:
    """The classes of a stream, and which of them may be predicted for an image.

    Classes have their names in the stream, which no two of them share.
    """

    tasks: Sequence[Sequence[str]]
    """The classes of each task."""
    groups: Sequence[Domain]
    """All classes, by the prompts that they have."""
    rule: Choices = "seen"
    """Which classes may be predicted."""
    twins: Twins = "separate"
    """Whether classes of the same name in two data sets count as one."""

    @classmethod
    def of_stream(cls, stream: Stream) -> "ClassChoices":
        """The classes of a stream.

        Args:
            stream: The stream.
        """
        tasks = [stream.names(task.classes) for task in stream.tasks]
        return cls(tasks, stream.test.prompt_groups, stream.choices, stream.twins)

    @classmethod
    def of_config(cls, data: Mapping[str, Any]) -> "ClassChoices":
        """The classes of a run.

        Args:
            data: What the run's config says of its data.
        """
        groups = [Domain(**domain) for domain in data.get("domains", [])]
        tasks, names = data["tasks"], {name: name for task in data["tasks"] for name in task}
        groups = groups or [Domain("", names, data["prompt"], data["templates"])]
        return cls(tasks, groups, data.get("choices", "seen"), data.get("twins", "separate"))

    @classmethod
    def of_names(cls, names: Sequence[str], templates: Sequence[str]) -> "ClassChoices":
        """These classes, any of which may always be predicted.

        Args:
            names: Their names.
            templates: The templates of their prompts.
        """
        return cls([names], [Domain("", {name: name for name in names}, "{}", templates)])

    @property
    def domains(self) -> list[str]:
        """The names of the data sets, where there are several."""
        return [group.name for group in self.groups] if len(self.groups) > 1 else []

    def seen(self, learned: int) -> list[str]:
        """The classes of the first tasks; before the first, all.

        Args:
            learned: How many tasks are learned.
        """
        tasks = self.tasks[:learned] if learned else self.tasks
        return list(dict.fromkeys(name for task in tasks for name in task))

    def possible(self, learned: int) -> list[str]:
        """The classes that may be predicted for at least one image.

        Args:
            learned: How many tasks are learned; before the first, all classes are possible.
        """
        return self.seen(0 if self.rule == "all" else learned)

    def of_task(self, number: int, learned: int) -> tuple[str, ...]:
        """The classes that may be predicted for the images of a task.

        Args:
            number: The task, from 0. One that is not learned yet has all classes of the stream.
            learned: How many tasks are learned.
        """
        return self.of_class(self.tasks[number][0], learned if number < learned else 0)

    def of_class(self, name: str, learned: int) -> tuple[str, ...]:
        """The classes that may be predicted for the images of a class.

        Args:
            name: The class.
            learned: How many tasks are learned.
        """
        names = self.possible(learned)
        if self.rule != "domain":
            return tuple(names)
        own = self.domain_of(name).classes
        return tuple(each for each in names if each in own)

    def domain_of(self, name: str) -> Domain:
        """The data set of a class, with its prompts.

        Args:
            name: The class.
        """
        return self._domains[name]

    def in_prompts(self, name: str) -> str:
        """What a class is called in prompts, without the name of its data set.

        Args:
            name: The class.
        """
        return self._domains[name].classes[name]

    def prompted(self, name: str) -> PromptedClass:
        """What a class is called, and its prompts.

        Args:
            name: The class.
        """
        domain = self._domains[name]
        in_prompts = self.in_prompts(name)
        prompts = [fill_template(template, [in_prompts])[0] for template in domain.templates]
        shown = in_prompts if self.twins == "merge" else name
        return PromptedClass(shown, prompts, domain.name if self.domains else "")

    def ids(self, names: Sequence[str]) -> Indices:
        """An id for each of these classes; classes that count as one share it.

        Args:
            names: The classes.
        """
        if self.twins == "separate":
            return np.arange(len(names))
        first: dict[str, int] = {}
        alike = (normalized_name(self.in_prompts(name)) for name in names)
        return np.array([first.setdefault(name, len(first)) for name in alike], np.int64)

    @cached_property
    def _domains(self) -> dict[str, Domain]:
        return {name: group for group in self.groups for name in group.classes}


def merge_twins(predicted: Indices, labels: Indices, ids: Indices) -> Indices:
    """The predictions, with the true class in place of one that counts as the same.

    Args:
        predicted: The predicted class of each image.
        labels: The true class of each image.
        ids: The id of each class; classes that count as one share it.
    """
    merged: Indices = np.where(ids[predicted] == ids[labels], labels, predicted)
    return merged
