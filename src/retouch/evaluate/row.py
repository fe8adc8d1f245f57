"""One evaluation of a model: a row of the results."""

from pydantic import BaseModel


class Drift(BaseModel):
    """How far the text features of everyday words moved: weaker evidence than a control set."""

    moved: float
    """Mean over the words of 1 − cosine between their features before the first task and now."""
    neighbours: float
    """Percent of the words whose nearest other word is still the same."""


class Joint(BaseModel):
    """Accuracy in percent where any new class and any control class may be predicted.

    A class whose name is in both sets counts as one.
    """

    classes: int
    """How many classes the model chooses among."""
    new: float
    """On the test images of the new classes."""
    control: float
    """On the images of the control set."""
    overall: float
    """On all of them; every image has equal weight."""


class Row(BaseModel):
    """Accuracy in percent at one point of a run."""

    tasks: list[float | None]
    """On each task: over the classes seen so far if it is learned, else over the whole stream.

    None where a task of an earlier run has no images left, a later task was not known yet, or only
    the end of the run was evaluated.
    """
    control: float | None = None
    """On the control set: what the model could do before, which no task teaches."""
    joint: Joint | None = None
    """Over control classes and those learned by then; before the first task, over all classes."""
    drift: Drift | None = None
    """How far the features of everyday words moved."""
