"""A data set among the several that a stream is made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retouch.clip.text.zero_shot import fill_template


@dataclass(frozen=True)
class Domain:
    """One data set of a stream: its classes, and the prompts that they have."""

    name: str
    """The name of the data set, such as `cars`."""
    classes: Mapping[str, str]
    """Its classes: from the class's name in the stream, which no two classes share, to its name in
    prompts.
    """
    prompt: str
    """The template of a class's text in training."""
    templates: Sequence[str]
    """The templates of a class's texts in evaluation; their features are averaged."""

    def class_prompt(self, name: str) -> str:
        """The training text of a class.

        Args:
            name: The class's name in the stream.
        """
        return fill_template(self.prompt, [self.classes[name]])[0]

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for a run's config."""
        return {
            "name": self.name,
            "classes": dict(self.classes),
            "prompt": self.prompt,
            "templates": list(self.templates),
        }
