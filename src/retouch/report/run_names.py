"""What a run is called among others: its method, or its folder if methods are the same."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from retouch.evaluate.results import Results


class NamedResults(Results):
    """Results of a run that is called by its folder."""

    name: str


def run_labels(runs: Sequence[Results]) -> list[str]:
    """A name for each run; runs with the same name are numbered."""
    names = [run.name if isinstance(run, NamedResults) else run.method for run in runs]
    totals, counts = Counter(names), Counter[str]()
    labels = []
    for name in names:
        counts[name] += 1
        labels.append(f"{name} {counts[name]}" if totals[name] > 1 else name)
    return labels


def label_heading(runs: Sequence[Results]) -> str:
    """What the labels are: runs or methods."""
    return "run" if any(isinstance(run, NamedResults) for run in runs) else "method"


def name_by_folder(runs: Sequence[Results], folders: Sequence[Path | None]) -> list[Results]:
    """The runs, named by their folders if their methods do not tell them apart."""
    known = [folder for folder in folders if folder is not None]
    if len({run.method for run in runs}) == len(runs) or len(known) < len(runs):
        return list(runs)
    pairs = zip(runs, distinguishing_names(known), strict=True)
    return [NamedResults(name=name, **dict(run)) for run, name in pairs]


def distinguishing_names(folders: Sequence[Path]) -> list[str]:
    """The part in which each path differs from the others: "march", "april"."""
    parts = [folder.resolve().parts for folder in folders]
    shortest = min(map(len, parts))
    start = next((i for i in range(shortest - 1) if len({p[i] for p in parts}) > 1), shortest - 1)
    rest = shortest - start - 1
    end = next((i for i in range(rest) if len({p[-1 - i] for p in parts}) > 1), rest)
    return ["/".join(p[start : len(p) - end]) for p in parts]
