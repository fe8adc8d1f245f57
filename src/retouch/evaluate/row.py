"""One evaluation of a model: a row of the results."""

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from retouch.files.checksummed import Count, Document, Percent


class Drift(Document):
    """How far the text features of everyday words moved: weaker evidence than a control set."""

    moved: Annotated[float, Field(ge=0, le=2)]
    """Mean over the words of 1 − cosine between their features before the first task and now."""
    neighbours: Percent
    """Percent of the words whose nearest other word is still the same."""


class Joint(Document):
    """Accuracy in percent where any new class and any control class may be predicted.

    A class whose name is in both sets counts as one.
    """

    classes: Count
    """How many classes the model chooses among."""
    new: Percent
    """On the test images of the new classes."""
    control: Percent
    """On the images of the control set."""
    overall: Percent
    """On all of them; every image has equal weight."""


class ControlPart(Document):
    """Accuracy on the part of a large control set that is checked after each task."""

    images: Count
    """How many images this part has; they are the same in a whole run."""
    accuracy: Percent
    """On these, in percent."""

    @classmethod
    def of(cls, hits: NDArray[np.bool_]) -> "ControlPart":
        """The accuracy, given which images were recognized."""
        return cls(images=len(hits), accuracy=100 * float(hits.mean()))


class Row(Document):
    """Accuracy in percent at one point of a run."""

    tasks: list[Percent | None]
    """On each task: over the classes seen so far if it is learned, else over the whole stream.

    None where a task of an earlier run has no images left, a later task was not known yet, or only
    the end of the run was evaluated.
    """
    control: Percent | None = None
    """On the control set: what the model could do before, which no task teaches. Where only a part
    of it was checked, an estimate: before the first task, less what this part lost since.
    """
    control_part: ControlPart | None = None
    """On a part of the control set, where only that was checked. Also before the first task, where
    all of it was: what later rows are compared with.
    """
    joint: Joint | None = None
    """Over control classes and those learned by then; before the first task, over all classes. None
    where only a part of the control set was checked.
    """
    drift: Drift | None = None
    """How far the features of everyday words moved."""

    def estimate_control(self, first: "Row") -> None:
        """Where only a part of the control set was checked, estimate the accuracy on all of it.

        Args:
            first: The evaluation before the first task, on all of it.
        """
        if self.control is None and self.control_part and first.control_part:
            assert first.control is not None
            lost = first.control_part.accuracy - self.control_part.accuracy
            self.control = min(100.0, max(0.0, first.control - lost))
