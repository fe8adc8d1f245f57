"""What the numbers say, in plain sentences, each of them computed from the numbers alone.

Numbers are compared as they are shown, to one decimal: two runs that look the same share a place.
"""

from collections.abc import Sequence

from retouch import plural
from retouch.evaluate.results import Results
from retouch.report.run_names import labels
from retouch.report.steps import Step, continues, names, this_step

NONE = "–"
"""Stands where there is nothing to say."""


def number(value: float) -> str:
    """One decimal and a real minus sign; never "−0.0"."""
    return f"{round(value, 1) + 0.0:.1f}".replace("-", "−")


def percent(value: float) -> str:
    return f"{number(value)} %"


def points(value: float) -> str:
    return f"{number(value)} point{'' if number(value) == '1.0' else 's'}"


def share(part: int, whole: int) -> str:
    """A share in percent, with about two digits, since it may be tiny."""
    value = 100 * part / whole if whole else 0.0
    if value == 0 or value >= 10:
        return f"{value:.0f} %"
    return f"{value:.1f} %" if value >= 1 else f"{value:.2g} %"


def duration(seconds: float) -> str:
    """Short and easy to compare: "41 s", "3.3 min", "1.2 h"."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def file_size(count: float) -> str:
    """Short: "0.6 kB", "579 kB", "16.3 MB", "436 MB", "1.2 GB"."""
    if count >= 999.5e6:
        return f"{count / 1e9:.1f} GB"
    if count >= 999.5e3:
        return f"{count / 1e6:.0f} MB" if count >= 99.5e6 else f"{count / 1e6:.1f} MB"
    return f"{count / 1e3:.0f} kB" if count >= 9_950 else f"{count / 1e3:.1f} kB"


def update_summary(run: Results) -> bool:
    """Whether any weight was free to move."""
    return max(run.trained, default=0) > 0


def classes(run: Results, tasks: int | None = None) -> int:
    """How many new classes there are, in all tasks or in the first so many; each counts once."""
    return len(names(run, range(len(run.tasks))[:tasks]))


def numbers(run: Results) -> dict[str, float]:
    """Every number there is of a run; none before the model was judged on all its tasks."""
    return run.metrics() if run.begun else {}


def starting_sentence(run: Results) -> float | None:
    """Recognised of all new classes before anything was learned, in percent."""
    known = run.begun and any(run.rows[0].tasks[task] is not None for task in run.evaluated_tasks)
    return run.frozen_accuracy if known else None


def learned_sentence(run: Results) -> str:
    """What one run learned; if it goes on from another, in this step alone.

    Before all tasks are learned there is no "before → after": the model then chooses among fewer
    classes than it did at the beginning, which is easier.
    """
    if continues(run):
        return _learned_in_step(run, this_step(run))
    total, start, now = classes(run), starting_sentence(run), numbers(run).get("accuracy")
    if not run.rows:
        return f"The run has not begun; it will learn {plural.count(total, 'new class')}."
    if not run.done and start is not None:
        of = plural.count(total, "new class")
        return f"Nothing is learned yet: {percent(start)} of the {of} recognised."
    if now is None or start is None:
        seen = f"{classes(run, run.done)} of {plural.count(total, 'new class')}"
        return f"It has seen {seen}; there are no images to judge by how many it recognises."
    if not run.finished:
        seen = f"{classes(run, run.done)} of {plural.count(total, 'new class')}"
        return f"So far it has seen {seen}: {percent(now)} recognised."
    return _verdict(run, range(len(run.tasks)), plural.count(total, "new class"), start, now)


def _learned_in_step(run: Results, step: Step) -> str:
    total, what = len(step.classes), _of_step(step)
    if run.done == run.learned_before:
        known = "" if step.before is None else f": {percent(step.before)} of its {what} recognised"
        return f"Nothing of this step is learned yet{known}."
    own = range(run.learned_before, run.done)
    seen = f"{len(names(run, own))} of {plural.count(total, 'class')}" if not run.finished else what
    if step.before is None or step.now is None:
        return (
            f"In this step it has seen {seen}; there are no images to judge by how many it knows."
        )
    if not run.finished:
        return f"So far in this step it has seen {seen}: {percent(step.now)} recognised."
    return f"In this step {_lower(_verdict(run, own, what, step.before, step.now))}"


def _of_step(step: Step) -> str:
    """This step's classes, and how many of them the model had been taught before."""
    total, again = len(step.classes), len(step.again)
    if not again:
        return f"{total} new class{'' if total == 1 else 'es'}"
    if again == total:
        return f"{total} class{'' if total == 1 else 'es'} it had been taught before"
    return f"{total} classes ({again} of them taught before)"


def _verdict(run: Results, tasks: range, what: str, start: float, now: float) -> str:
    """Whether the classes of finished tasks were learned."""
    change = f"{percent(start)} → {percent(now)} recognised."
    if not update_summary(run):
        return f"It learned nothing, as no weight could move: {change}"
    if round(now, 1) <= round(start, 1):
        return f"It did not learn the {what}: {change}"
    dropped = [
        task for task in tasks if task < len(run.fraction_kept) and not run.fraction_kept[task]
    ]
    if held := len(names(run, dropped)):
        total = len(names(run, tasks))
        seen = (
            f"{total - held} of {plural.count(total, 'new class')}, and kept nothing of the others"
        )
        return f"It learned {seen}: {change}"
    return f"It learned {what}: {change}"


def _lower(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]


def learned_earlier_sentence(run: Results) -> str:
    """What this step did to the classes that earlier steps taught; "" where there are none."""
    if not continues(run) or run.done == run.learned_before:
        return ""
    step = this_step(run)
    count = len(step.earlier)
    which = f"The {count} classes learned before" if count > 1 else "The class learned before"
    if step.earlier_before is None or step.earlier_now is None:
        return f"{which}: not measured, as the earlier run kept no images of them."
    seen = len(names(run, range(run.done)))
    among = f", now chosen among {seen} classes instead of {count}" if seen > count else ""
    return f"{which}: {percent(step.earlier_before)} → {percent(step.earlier_now)}{among}."


def control_sentence(run: Results) -> str:
    """The control accuracy before and now; of a run that goes on, in this step alone."""
    found = numbers(run)
    if continues(run):
        step, found = this_step(run), {}
        if step.control_before is not None and step.control_now is not None:
            once, now = step.control_before, step.control_now
            return f"Control accuracy in this step {_control(once, now)}."
    if "control" in found:
        return f"Control accuracy {_control(found['control_before'], found['control'])}."
    start = run.rows[0].control if run.rows else None
    if start is not None and run.done:
        return f"Control accuracy was {percent(start)} before; it was not measured again."
    if start is not None:
        return f"Control accuracy {percent(start)} before the first task."
    return "What it could do before was not measured: the run had no control set."


def _control(once: float, now: float) -> str:
    drop = once - now
    verb = "unchanged" if round(drop, 1) == 0 else "lost" if drop > 0 else "gained"
    size = "" if verb == "unchanged" else f"{points(abs(drop))} "
    return f"{percent(once)} → {percent(now)}: {size}{verb}"


def joint_sentence(run: Results) -> str:
    """Accuracy over new and control classes at once, where it was measured."""
    found, start = (run.rows[-1].joint, run.rows[0].joint) if run.rows else (None, None)
    if found is None:
        return ""
    then = start if run.finished and run.done else None
    pairs = [
        (f"{percent(getattr(then, part))} → " if then else "") + percent(getattr(found, part))
        for part in ("new", "control", "overall")
    ]
    among = f"Choosing among all {found.classes} classes, new and control"
    return f"{among}: new classes {pairs[0]}, control {pairs[1]}, both together {pairs[2]}."


def total_sentence(run: Results) -> str:
    """All steps together, of a run that goes on from another; "" of any other."""
    found, start = numbers(run), starting_sentence(run)
    if not continues(run) or not run.finished or start is None or "accuracy" not in found:
        return ""
    change = f"{percent(start)} → {percent(found['accuracy'])} recognised"
    said = (
        f"In all, since before the first task: {plural.count(classes(run), 'new class')}, {change}"
    )
    if "control" in found:
        said += (
            f"; control accuracy {percent(found['control_before'])} → {percent(found['control'])}"
        )
    return f"{said}."


def verdict(run: Results) -> list[str]:
    """A run in sentences, in the order in which they should be read."""
    said = [
        learned_sentence(run),
        learned_earlier_sentence(run),
        control_sentence(run),
        total_sentence(run),
        joint_sentence(run),
        drift_sentence(run),
    ]
    return [sentence for sentence in said if sentence]


def drift_sentence(run: Results) -> str:
    """How far everyday words moved, which is known without any images."""
    drift = run.rows[-1].drift if run.done else None
    if drift is None:
        return ""
    weaker = "Weaker evidence than a control set, as it is about texts alone."
    if not drift.moved:
        return f"Everyday words: they mean to it what they meant before. {weaker}"
    same = f"{percent(drift.neighbours)} are still nearest to the same word"
    far = f"they moved by {drift.moved:.2g} (1 − cosine) on average"
    return f"Everyday words: {same}; {far}. {weaker}"


def compile_sentence(run: Results) -> str:
    """What of the time was spent once and for all."""
    took = run.environment.get("compiling")
    return (
        f"{took} went into compiling the model; the next run finds most of it done." if took else ""
    )


def comparison_sentences(runs: Sequence[Results]) -> list[str]:
    """Which run learned most and which forgot least, of those that can be compared.

    These are the finished ones in which weights could move: a model that learns nothing forgets
    nothing either. Where the runs did not learn the same, nothing is said.
    """
    if not _alike(runs):
        return []
    pairs = zip(labels(runs), runs, strict=True)
    able = {
        name: run for name, run in pairs if run.finished and numbers(run) and update_summary(run)
    }
    if not able:
        return ["No run that trains is finished yet."]
    said = [_most(able)]
    drops = {n: m["control_drop"] for n, run in able.items() if "control" in (m := numbers(run))}
    if drops:
        still = len(drops) > 1 and any(run.done and not update_summary(run) for run in runs)
        said.append(("Of those that train, " if still else "") + _least(drops))
    return said


def _most(able: dict[str, Results]) -> str:
    accuracy = {name: run.metrics()["accuracy"] for name, run in able.items()}
    top = max(accuracy, key=lambda name: accuracy[name])
    best, start = accuracy[top], able[top].frozen_accuracy
    both = f"{percent(best)} of the new classes recognised, {percent(start)} before"
    names = _named(accuracy, best)
    if round(best, 1) <= round(start, 1):
        return f"No run learned the new classes; the best is {names}: {both}."
    verb = "learned" if len(able) == 1 else "learned most"
    return f"{names} {verb}: {both}."


def _least(drops: dict[str, float]) -> str:
    least, most = min(drops.values()), max(drops.values())
    of_what = "of what the model could do before"
    if len(drops) > 1 and round(least, 1) == round(most, 1):
        return f"{_and(list(drops))} {_lost(least, of_what)}."
    best, worst = _named(drops, least), _named(drops, most)
    if len(drops) == 1:
        return f"{best} {_lost(least, of_what)}."
    if round(least, 1) > 0:
        first = f"{best} forgot least {of_what}: {points(least)}"
        return f"{first}; {worst} forgot most: {points(most)}."
    return f"{best} {_lost(least, of_what)}; {worst} {_lost(most)}."


def cautions(runs: Sequence[Results]) -> list[str]:
    """What a reader must know before comparing these numbers."""
    found = []
    if not _alike(runs):
        found.append(
            "These runs did not learn the same classes with the same model: "
            "their numbers cannot be compared directly."
        )
    named = list(zip(labels(runs), runs, strict=True))
    if len(runs) == 1:
        named = [("The run", runs[0])]
    found += [_unfinished(name, run) for name, run in named if not run.finished]
    without = [name for name, run in named if run.rows and run.rows[0].control is None]
    if without and len(without) < len(runs):
        found.append(f"No control set, so what they could do before is unknown: {_and(without)}.")
    return found


def _unfinished(name: str, run: Results) -> str:
    if not run.done:
        return f"{name} is not finished: no task is learned yet."
    return (
        f"{name} is not finished: {run.done} of {plural.count(len(run.tasks), 'task')} are "
        "learned, and its numbers are about the classes of these tasks alone."
    )


def _alike(runs: Sequence[Results]) -> bool:
    return all(run.model == runs[0].model and run.tasks == runs[0].tasks for run in runs)


def _named(values: dict[str, float], value: float) -> str:
    return _and([name for name, other in values.items() if round(other, 1) == round(value, 1)])


def _and(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _lost(drop: float, of_what: str = "") -> str:
    """The verb for a drop: "forgot 6.1 points", "forgot nothing", "gained 0.4 points"."""
    of_what = of_what and f" {of_what}"
    if round(drop, 1) == 0:
        return f"forgot nothing{of_what}"
    if drop > 0:
        return f"forgot {points(drop)}{of_what}"
    return f"gained {points(-drop)}{of_what.replace(' of ', ' in ', 1)}"
