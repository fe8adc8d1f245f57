"""What a run learned from: its tasks and its sets of images, as they are stored in its results."""

from retouch.files.checksummed import Count, Document


class TaskInfo(Document):
    """A task of the stream."""

    classes: list[str]
    train: Count
    test: Count
    domain: str = ""
    """The name of its data set, where the stream has several."""


class DataInfo(Document):
    """A set of images that the run used."""

    name: str
    classes: Count
    images: Count
