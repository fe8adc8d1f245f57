"""What a run learned from: its tasks and its sets of images, as they are stored in its results."""

from pydantic import BaseModel


class TaskInfo(BaseModel):
    """A task of the stream."""

    classes: list[str]
    train: int
    test: int
    domain: str = ""
    """The name of its data set, where the stream has several."""


class DataInfo(BaseModel):
    """A set of images that the run used."""

    name: str
    classes: int
    images: int
