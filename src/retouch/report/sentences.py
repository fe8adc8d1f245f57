"""One run in plain sentences, each computed from its results alone.

Numbers are compared as they are shown, to one decimal.
"""

from retouch.evaluate.results import Results
from retouch.plotting.formatting import percent, points
from retouch.report.run_metrics import (
    Continuation,
    any_weight_trained,
    class_count,
    class_names,
    continuation,
    control_part,
    could_learn,
    is_continued,
    metrics,
    starting_accuracy,
)
from retouch.text import plural

CHOICES = {
    "domain": "An image is classified among the classes of its own data set.",
    "all": "An image is classified among all classes of all data sets.",
    "seen": "An image is classified among the classes learned so far, of whichever data set.",
}
"""What a run over several data sets chooses among, by `Results.choices`."""


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
    sentences = [CHOICES[run.choices]]
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


def run_sentences(run: Results) -> list[str]:
    """All sentences about a run, in reading order."""
    sentences = [
        learned_sentence(run),
        learned_earlier_sentence(run),
        control_sentence(run),
        control_part_sentence(run),
        domain_sentence(run),
        total_sentence(run),
        joint_sentence(run),
        drift_sentence(run),
    ]
    return [sentence for sentence in sentences if sentence]


def learned_sentence(run: Results) -> str:
    """What a run learned; a run that continues another reports only what it learned itself.

    Before all tasks are learned there is no "before → after": the model then chooses among fewer
    classes than it did at the beginning, which is easier.
    """
    if is_continued(run):
        return _learned_in_this_run(run, continuation(run))
    total, start, now = class_count(run), starting_accuracy(run), metrics(run).get("accuracy")
    new_classes = plural.count(total, "new class")
    if not run.rows:
        return f"The run has not begun; it will learn {new_classes}."
    if not run.done and start is not None:
        return f"Nothing learned yet: {percent(start)} of the {new_classes} recognized."
    seen = f"{class_count(run, run.done)} of {new_classes}"
    if now is None or start is None:
        return f"It has seen {seen}; {_not_measured(run, range(run.done))}."
    if not run.finished:
        return f"So far it has seen {seen}: {percent(now)} recognized."
    return _learned(run, range(len(run.tasks)), new_classes, start, now)


def _learned_in_this_run(run: Results, this_run: Continuation) -> str:
    which = _classes_of_this_run(this_run)
    if run.done == run.learned_before:
        before = this_run.before
        known = "" if before is None else f": {percent(before)} of its {which} recognized"
        return f"This run has not learned anything yet{known}."
    tasks = range(run.learned_before, run.done)
    seen = which
    if not run.finished:
        seen = f"{len(class_names(run, tasks))} of {plural.count(len(this_run.classes), 'class')}"
    if this_run.before is None or this_run.now is None:
        return f"In this run it has seen {seen}; {_not_measured(run, tasks)}."
    if not run.finished:
        return f"So far in this run it has seen {seen}: {percent(this_run.now)} recognized."
    again = len(this_run.taught_before) == len(this_run.classes)
    sentence = _learned(run, tasks, which, this_run.before, this_run.now, again)
    return f"In this run {sentence[0].lower()}{sentence[1:]}"


def _not_measured(run: Results, tasks: range) -> str:
    """Why it is not known how many classes of these tasks are recognized."""
    if any(task in tasks for task in run.evaluated_tasks):
        return "how many it recognizes was not measured yet"
    return "there are no test images to measure how many it recognizes"


def _classes_of_this_run(this_run: Continuation) -> str:
    """This run's classes, and how many of them the model had been taught before."""
    total, again = len(this_run.classes), len(this_run.taught_before)
    if not again:
        return f"{total} new class{'' if total == 1 else 'es'}"
    if again == total:
        return f"{total} class{'' if total == 1 else 'es'} it had been taught before"
    return f"{total} classes ({again} of them taught before)"


def _learned(
    run: Results, tasks: range, which: str, start: float, now: float, known: bool = False
) -> str:
    """Whether the classes of finished tasks were learned; `known`: all were taught before."""
    change = f"{percent(start)} → {percent(now)} recognized."
    if not could_learn(run):
        return f"It learned nothing, as no weight could move: {change}"
    if round(now, 1) == round(start, 1) and (round(start, 1) == 100 or known):
        return f"The {which} stayed at {percent(now)}."
    if round(now, 1) <= round(start, 1):
        return f"It {'got no better at' if known else 'did not learn'} the {which}: {change}"
    reverted = [
        task for task in tasks if task < len(run.fraction_kept) and not run.fraction_kept[task]
    ]
    if reverted_count := len(class_names(run, reverted)):
        total = len(class_names(run, tasks))
        learned = f"{total - reverted_count} of {plural.count(total, 'new class')}"
        return f"It learned {learned}, and kept nothing of the others: {change}"
    if not any_weight_trained(run):
        return (
            f"It learned {which}, by vectors that are kept beside the model, which is unchanged: "
            f"{change}"
        )
    return f"It learned {which}: {change}"


def learned_earlier_sentence(run: Results) -> str:
    """What this run did to the classes that earlier runs taught; "" where there are none."""
    if not is_continued(run) or run.done == run.learned_before:
        return ""
    this_run = continuation(run)
    count = len(this_run.earlier)
    which = f"The {count} classes learned before" if count > 1 else "The class learned before"
    if this_run.earlier_before is not None and this_run.earlier_now is None:
        return f"{which}: not measured again yet."
    if this_run.earlier_before is None or this_run.earlier_now is None:
        return f"{which}: not measured, as the earlier run kept no images of them."
    seen = len(class_names(run, range(run.done)))
    among = f", now choosing among {seen} classes instead of {count}" if seen > count else ""
    return f"{which}: {percent(this_run.earlier_before)} → {percent(this_run.earlier_now)}{among}."


def control_sentence(run: Results) -> str:
    """The control accuracy before and now; of a continued run, since it began."""
    values = metrics(run)
    if is_continued(run):
        this_run, values = continuation(run), {}
        if this_run.control_before is not None and this_run.control_now is not None:
            change = _change(this_run.control_before, this_run.control_now)
            return f"Control accuracy in this run {change}."
    if "control" in values:
        return f"Control accuracy {_change(values['control_before'], values['control'])}."
    start = run.rows[0].control if run.rows else None
    if start is not None and run.done:
        return f"Control accuracy was {percent(start)} before; it was not measured again."
    if start is not None:
        return f"Control accuracy {percent(start)} before the first task."
    return "What it could do before was not measured: the run had no control set."


def control_part_sentence(run: Results) -> str:
    """How much of a large control set was checked after each task; "" if always all of it."""
    part, control = control_part(run), run.data.get("control")
    if part is None or control is None:
        return ""
    images = f"{part:,} of the {control.images:,} control images"
    if run.rows[-1].control_part:
        return (
            f"So far control accuracy is an estimate: {images} are checked after each task, all of "
            "them at the end."
        )
    return f"While it learned, {images} were checked after each task; all of them at the end."


def _change(before: float, now: float) -> str:
    drop = before - now
    verb = "unchanged" if round(drop, 1) == 0 else "lost" if drop > 0 else "gained"
    size = "" if verb == "unchanged" else f"{points(abs(drop))} "
    return f"{percent(before)} → {percent(now)}: {size}{verb}"


def joint_sentence(run: Results) -> str:
    """Accuracy over new and control classes at once, where it was measured."""
    now, start = (run.rows[-1].joint, run.rows[0].joint) if run.rows else (None, None)
    if now is None:
        return ""
    before = start if run.finished and run.done else None
    new, control, overall = (
        (f"{percent(getattr(before, part))} → " if before else "") + percent(getattr(now, part))
        for part in ("new", "control", "overall")
    )
    among = f"Choosing among all {now.classes} classes, new and control"
    return f"{among}: new classes {new}, control {control}, both together {overall}."


def total_sentence(run: Results) -> str:
    """A continued run and all runs before it together; "" for any other run."""
    values, start = metrics(run), starting_accuracy(run)
    if not is_continued(run) or not run.finished or start is None or "accuracy" not in values:
        return ""
    classes = plural.count(class_count(run), "new class")
    measured = len(class_names(run, run.evaluated_tasks))
    verb = "was" if measured == 1 else "were"
    classes += f", of which {measured} {verb} measured:" if measured < class_count(run) else ","
    change = f"{percent(start)} → {percent(values['accuracy'])} recognized"
    sentence = f"In total, since before the first task: {classes} {change}"
    if "control" in values:
        control = f"{percent(values['control_before'])} → {percent(values['control'])}"
        sentence += f"; control accuracy {control}"
    return f"{sentence}."


def drift_sentence(run: Results) -> str:
    """How far everyday words moved, which is known without any images."""
    drift = run.rows[-1].drift if run.done else None
    if drift is None:
        return ""
    weaker = (
        "Weaker evidence than a control set: it covers only texts, of words that the method may "
        "hold where they were."
    )
    if not drift.moved:
        return f"Everyday words mean the same to it as before. {weaker}"
    same = f"{percent(drift.neighbours)} are still nearest to the same word"
    distance = f"they moved by {drift.moved:.2g} (1 − cosine) on average"
    return f"Everyday words: {same}; {distance}. {weaker}"


def compile_sentence(run: Results) -> str:
    """How much of the time went into compiling; "" if none did."""
    seconds = run.environment.get("compiling")
    return (
        f"{seconds} went into compiling the model; the next run reuses most of it."
        if seconds
        else ""
    )
