"""Zero-shot accuracy of a CLIP on the classes it learned and on a control set, and its metrics."""

from retouch.evaluate.evaluator import Evaluator
from retouch.evaluate.results import Results
from retouch.evaluate.row import Row

__all__ = ["Evaluator", "Results", "Row"]
