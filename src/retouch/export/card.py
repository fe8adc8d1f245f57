"""The card: what this model is, what it learned and lost, how to load it, how to go back."""

from typing import TYPE_CHECKING, Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from retouch.evaluate.per_class import ClassRow
from retouch.evaluate.results import Results
from retouch.export.export_model import ExportModel
from retouch.export.markdown import literal
from retouch.export.plain import Written
from retouch.export.tokenizer import context_of
from retouch.plural import count
from retouch.report import phrasing
from retouch.sparse import fingerprint
from retouch.version import VERSION

if TYPE_CHECKING:
    from retouch.export.write import Format

LIBRARIES = {"hf": "transformers", "open_clip": "open_clip", "onnx": "onnx"}
_LISTED = 200
"""More classes than these are no reading; classes.json has all."""
_LOST = 10


def card(subject: ExportModel, to: "Format", found: Written) -> str:
    """README.md, with the front matter that the hub reads."""
    environment = Environment(
        loader=PackageLoader("retouch.export", ""),
        autoescape=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["literal"] = literal
    content = {
        "front": _front(subject, to),
        "to": to,
        "library": LIBRARIES[to],
        "base": subject.base,
        "found": found,
        "classes": subject.classes,
        "templates": subject.templates,
        "pixels": subject.clip.preprocess,
        "context": context_of(subject.clip) if to == "onnx" else 0,
        "mask": ", `attention_mask`" if _is_dual(subject) else "",
        "loader": "AutoModel" if _is_dual(subject) else "CLIPModel",
        "weights": fingerprint(subject.clip.model),
        "version": VERSION,
        "run": subject.run and _run(subject, subject.run),
    }
    return environment.get_template("card.md.j2").render(content)


def _is_dual(subject: ExportModel) -> bool:
    return type(subject.clip.model).__name__ == "VisionTextDualEncoderModel"


def _front(subject: ExportModel, to: "Format") -> str:
    tags = ["clip", "retouch", *(["continual-learning"] if subject.classes else [])]
    facts: dict[str, Any] = {
        "library_name": LIBRARIES[to],
        "pipeline_tag": "zero-shot-image-classification",
        "tags": tags,
    }
    if subject.hub:
        facts["base_model"] = subject.hub
    return yaml.safe_dump(facts, sort_keys=False)


def _run(subject: ExportModel, run: Results) -> dict[str, Any]:
    """What the template says of the run."""
    metrics, before = phrasing.numbers(run), phrasing.starting_sentence(run)
    control = subject.config.get("control")
    told = {key: subject.config[key] for key in ("method", "settings") if key in subject.config}
    return {
        "done": run.done,
        "tasks": len(run.tasks),
        "finished": run.finished,
        "verdict": phrasing.verdict(run),
        "joint": _joint(run),
        "accuracy": phrasing.percent(metrics["accuracy"]) if metrics else "",
        "before": phrasing.NONE if before is None or not run.finished else phrasing.percent(before),
        "forgot": phrasing.points(metrics["forgetting"]) if metrics and run.done > 1 else "",
        "scaled": [
            (n, f"{100 * kept:.0f} %") for n, kept in enumerate(run.fraction_kept, 1) if kept < 1
        ],
        "control": "control" in metrics and _control(metrics, control),
        "judged": sum(task.test for task in run.tasks[: run.done]),
        "trained": sum(task.train for task in run.tasks[: run.done]),
        "method": run.method,
        "summary": run.summary,
        "moved": phrasing.share(max(run.trained, default=0), run.parameters),
        "half": run.settings.get("precision") == "bf16",
        "rows": _rows(subject, run)[:_LISTED],
        "more": max(0, len(subject.classes) - _LISTED),
        "by_class": subject.by_class is not None,
        "lost": _lost(subject),
        "settings": yaml.safe_dump(told, sort_keys=False, allow_unicode=True),
        "environment": ", ".join(f"{k} {v}" for k, v in run.environment.items() if k in _MADE_BY),
    }


_MADE_BY = ("retouch", "torch", "transformers", "python")


def _control(metrics: dict[str, float], control: dict[str, int] | None) -> dict[str, Any]:
    return {
        "before": phrasing.percent(metrics["control_before"]),
        "after": phrasing.percent(metrics["control"]),
        "set": f"{count(control['images'], 'image')} of {count(control['classes'], 'class')}"
        if control
        else "",
    }


def _joint(run: Results) -> dict[str, str] | None:
    """Accuracy over new and control classes at once, where it was measured."""
    found, start = run.rows[-1].joint, run.rows[0].joint
    if found is None:
        return None
    before = phrasing.percent(start.overall) if start and run.finished else phrasing.NONE
    return {
        "classes": f"{found.classes:,}",
        "before": before,
        "now": phrasing.percent(found.overall),
    }


def _rows(subject: ExportModel, run: Results) -> list[dict[str, Any]]:
    """A line a class; with what was right before and after where the run counted that."""
    judged = {row.name: row for row in subject.by_class.classes} if subject.by_class else {}
    found = []
    for number, task in enumerate(run.tasks[: run.done], 1):
        for name in task.classes:
            row = judged.get(name)
            found.append({"name": name, "task": number, **_right(row)})
    return found


def _right(row: ClassRow | None) -> dict[str, str]:
    before = phrasing.percent(row.before) if row and row.before is not None else phrasing.NONE
    return {"before": before, "after": phrasing.percent(row.after) if row else phrasing.NONE}


def _lost(subject: ExportModel) -> list[dict[str, str]]:
    """Of what it could do before: the classes that fell furthest."""
    rows = [r for r in subject.by_class.classes if not r.learned] if subject.by_class else []
    fell = [(r.before - r.after, r) for r in rows if r.before is not None and r.before > r.after]
    fell.sort(key=lambda pair: (-pair[0], pair[1].name))
    return [{"name": r.name, **_right(r)} for _, r in fell[:_LOST]]
