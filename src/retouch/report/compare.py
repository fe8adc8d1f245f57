"""Several runs in plain sentences: which learned most, which forgot least, what to be careful of.

Numbers are compared as they are shown, to one decimal: runs that look the same are tied.
"""

from collections.abc import Sequence

from retouch.evaluate.results import Results
from retouch.plotting.formatting import percent, points
from retouch.report.run_metrics import could_learn, metrics
from retouch.report.run_names import run_labels
from retouch.text import plural


def comparison_sentences(runs: Sequence[Results]) -> list[str]:
    """Which run learned most and which forgot least, of those that can be compared.

    These are the finished ones that could learn: a model that learns nothing forgets nothing
    either. Where the runs did not learn the same tasks, nothing is said.
    """
    if not _comparable(runs):
        return []
    trained = {
        name: run
        for name, run in zip(run_labels(runs), runs, strict=True)
        if run.finished and metrics(run) and could_learn(run)
    }
    if not trained:
        return ["No run that trains is finished yet."]
    sentences = [_learned_most(trained)]
    drops = {
        name: values["control_drop"]
        for name, run in trained.items()
        if "control" in (values := metrics(run))
    }
    if drops:
        has_frozen = len(drops) > 1 and any(run.done and not could_learn(run) for run in runs)
        sentences.append(("Of those that train, " if has_frozen else "") + _forgot_least(drops))
    return sentences


def _learned_most(runs: dict[str, Results]) -> str:
    accuracy = {name: run.metrics()["accuracy"] for name, run in runs.items()}
    best_name = max(accuracy, key=lambda name: accuracy[name])
    best, start = accuracy[best_name], runs[best_name].frozen_accuracy
    recognized = f"{percent(best)} of the new classes recognized, {percent(start)} before"
    names = _names_with(accuracy, best)
    if round(best, 1) <= round(start, 1):
        return f"No run learned the new classes; the best is {names}: {recognized}."
    verb = "learned" if len(runs) == 1 else "learned most"
    return f"{names} {verb}: {recognized}."


def _forgot_least(drops: dict[str, float]) -> str:
    least, most = min(drops.values()), max(drops.values())
    of_what = "of what the model could do before"
    if len(drops) > 1 and round(least, 1) == round(most, 1):
        return f"{_join(list(drops))} {_lost(least, of_what)}."
    best, worst = _names_with(drops, least), _names_with(drops, most)
    if len(drops) == 1:
        return f"{best} {_lost(least, of_what)}."
    if round(least, 1) > 0:
        first = f"{best} forgot least {of_what}: {points(least)}"
        return f"{first}; {worst} forgot most: {points(most)}."
    return f"{best} {_lost(least, of_what)}; {worst} {_lost(most)}."


def cautions(runs: Sequence[Results]) -> list[str]:
    """What a reader must know before comparing these numbers."""
    warnings = []
    if not _comparable(runs):
        warnings.append(
            "These runs did not learn the same classes with the same model: "
            "their numbers cannot be compared directly."
        )
    by_name = list(zip(run_labels(runs), runs, strict=True))
    if len(runs) == 1:
        by_name = [("The run", runs[0])]
    warnings += [_unfinished(name, run) for name, run in by_name if not run.finished]
    without = [name for name, run in by_name if run.rows and run.rows[0].control is None]
    if without and len(without) < len(runs):
        warnings.append(f"Without a control set, what they forgot is unknown: {_join(without)}.")
    return warnings


def _unfinished(name: str, run: Results) -> str:
    if not run.done:
        return f"{name} is not finished: no task is learned yet."
    return (
        f"{name} is not finished: {run.done} of {plural.count(len(run.tasks), 'task')} are "
        "learned, and its numbers cover only the classes of these tasks."
    )


def _comparable(runs: Sequence[Results]) -> bool:
    return all(run.model == runs[0].model and run.tasks == runs[0].tasks for run in runs)


def _names_with(values: dict[str, float], value: float) -> str:
    return _join([name for name, other in values.items() if round(other, 1) == round(value, 1)])


def _join(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _lost(drop: float, of_what: str = "") -> str:
    """The verb for a drop: "forgot 6.1 points", "forgot nothing", "gained 0.4 points"."""
    of_what = of_what and f" {of_what}"
    if round(drop, 1) == 0:
        return f"forgot nothing{of_what}"
    if drop > 0:
        return f"forgot {points(drop)}{of_what}"
    return f"gained {points(-drop)}{of_what.replace(' of ', ' in ', 1)}"
