"""Say what `teach` would do with a run that is in its folder already, and change nothing."""

from pathlib import Path

from retouch.clip import Clip
from retouch.data.images import Images
from retouch.data.pairs import Pairs
from retouch.data.stream import Stream
from retouch.distributed import collectives
from retouch.evaluate import results as results_file
from retouch.evaluate.results import Results
from retouch.methods import Method, Settings
from retouch.sparse import fingerprint
from retouch.train.api import start_method
from retouch.train.extend_stream import EarlierRun
from retouch.train.new_results import new_results
from retouch.train.open_folder import check_resumable
from retouch.train.run_config import run_config
from retouch.train.run_inputs import RunInputs


def find_resumable(
    clip: Clip,
    stream: Stream,
    method: Method,
    *,
    settings: Settings,
    out: Path,
    control: Images | None = None,
    reference: Pairs | None = None,
    earlier: EarlierRun | None = None,
) -> Results | None:
    """The results so far of the run in `out` that `teach` would resume with these arguments.

    None if it would be replaced, because it has learned nothing. A run that `teach` would refuse is
    refused. Call it on every rank; rank 0 reads.
    """
    started = start_method(clip, stream, method, settings, control, reference)
    if earlier is not None:
        earlier.check(started)
    inputs = RunInputs(clip, stream, started, settings, control, reference, earlier)
    weights, new = fingerprint(clip.model), new_results(inputs)

    def read() -> str:
        if not check_resumable(out, run_config(inputs, weights)):
            return ""
        results = Results.read(out) if (out / results_file.FILE).exists() else new
        results.check_replay(out, len(stream.train))
        return results.to_json()

    text = collectives.broadcast_str(read)
    return Results.model_validate_json(text) if text else None
