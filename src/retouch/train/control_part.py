"""Which control images are checked after each task, so that checking takes less than learning."""

from retouch.data.few_shot import balanced_indices
from retouch.data.images import Images
from retouch.data.stores.image_store import Indices
from retouch.data.stream import Stream
from retouch.methods import Method, Settings


def control_part(
    stream: Stream, control: Images | None, method: Method, settings: Settings
) -> Indices | None:
    """Positions of the control images to check after each task but the last; None for all.

    They depend on the control set and on their number alone, so a resumed run checks the same ones,
    and so does a run with another seed. A method that bounds what may be lost needs all of them.
    """
    count = settings.control_part
    if control is None or count == "all" or method.needs_control or len(stream.tasks) < 2:
        return None
    part = balanced_indices(control, count)
    return part if len(part) < len(control) else None
