"""What a run is called among others: its method, or its folder where the method is the same."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from retouch.evaluate.results import Results


class Named(Results):
    """A run that goes by the name of its folder."""

    name: str


def labels(runs: Sequence[Results]) -> list[str]:
    """A name for each run, numbered where several runs have the same."""
    names = [run.name if isinstance(run, Named) else run.method for run in runs]
    often, met = Counter(names), Counter[str]()
    found = []
    for name in names:
        met[name] += 1
        found.append(f"{name} {met[name]}" if often[name] > 1 else name)
    return found


def heading(runs: Sequence[Results]) -> str:
    """What the names are."""
    return "run" if any(isinstance(run, Named) for run in runs) else "method"


def named(runs: Sequence[Results], folders: Sequence[Path | None]) -> list[Results]:
    """The runs, each by the name of its folder if their methods do not tell them apart."""
    known = [folder for folder in folders if folder is not None]
    if len({run.method for run in runs}) == len(runs) or len(known) < len(runs):
        return list(runs)
    pairs = zip(runs, distinguishing_names(known), strict=True)
    return [Named(name=name, **dict(run)) for run, name in pairs]


def distinguishing_names(folders: Sequence[Path]) -> list[str]:
    """The part of each path in which it differs from the others: "march", "april"."""
    parts = [folder.resolve().parts for folder in folders]
    most = min(map(len, parts)) - 1
    start = next((i for i in range(most) if len({p[i] for p in parts}) > 1), most)
    rest = min(map(len, parts)) - start - 1
    end = next((i for i in range(rest) if len({p[-1 - i] for p in parts}) > 1), rest)
    return ["/".join(p[start : len(p) - end]) for p in parts]
