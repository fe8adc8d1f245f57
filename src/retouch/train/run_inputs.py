"""All that a run is made from, in one object."""

from dataclasses import dataclass

from retouch.clip import Clip
from retouch.data.images import Images
from retouch.data.pairs import Pairs
from retouch.data.stream import Stream
from retouch.methods import Method, Settings
from retouch.train.extend_stream import EarlierRun


@dataclass(frozen=True)
class RunInputs:
    """The arguments of `teach` that its results depend on."""

    clip: Clip
    stream: Stream
    method: Method
    """The run's own copy, which has seen the model."""
    settings: Settings
    control: Images | None = None
    reference: Pairs | None = None
    earlier: EarlierRun | None = None
    command: str = ""
