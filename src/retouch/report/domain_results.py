"""A run over several data sets in words: Transfer, Average and Last."""

from collections.abc import Sequence

from retouch.evaluate.results import Results
from retouch.plotting.formatting import percent

_AMONG = {
    "domain": "An image is classified among the classes of its own data set",
    "all": "An image is classified among all classes of all data sets",
    "seen": "An image is classified among the classes learned so far, of whichever data set",
}


def domain_sentence(run: Results) -> str:
    """How well data sets are known before their turn, over the run, and at the end.

    "" for a run over a single data set, and before the last task is learned.
    """
    values = run.metrics()
    if "last" not in values:
        return ""
    names = run.domains
    start = [value for value in run.domain_matrix[0] if value is not None]
    at_start = sum(start) / len(start) if start else 0.0
    sentences = [f"{_AMONG[run.choices]}."]
    if "transfer" in values:
        later = [value for value in run.domain_matrix[0][1:] if value is not None]
        before = f"{percent(sum(later) / len(later))} → " if later else ""
        sentences += [
            f"Data sets whose turn had not come yet: {before}{percent(values['transfer'])} "
            "(Transfer).",
            f"Mean over the whole run: {percent(values['average'])} (Average).",
        ]
    sentences.append(
        f"All {len(names)} data sets at the end: {percent(at_start)} → {percent(values['last'])} "
        "(Last)."
    )
    return " ".join(sentences)


def matrix_texts(runs: Sequence[Results]) -> dict[str, str]:
    """The heading of the matrices on the page, and how to read them."""
    if not all(run.domains for run in runs):
        return {
            "matrix_title": "Each task by itself",
            "matrix_hint": "Each column is a task; time runs downwards. In colour: the task is "
            "learned, and the model chooses among the classes seen so far. In italics: not learned "
            "yet, and it chooses among all classes of all tasks.",
        }
    among = " ".join(dict.fromkeys(f"{_AMONG[run.choices]}." for run in runs))
    return {
        "matrix_title": "Each data set by itself",
        "matrix_hint": "Each column is a data set; time runs downwards. In italics: its turn had "
        f"not come yet. {among} Transfer is the mean of a data set’s numbers in italics after the "
        "first task, Average that of all rows but the first, Last the last row.",
    }
