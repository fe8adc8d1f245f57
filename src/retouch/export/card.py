"""The model card: what the model is, what it learned and lost, how to load it, how to go back."""

from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from retouch.clip.hf.model import HuggingFaceClip
from retouch.clip.hf.siglip import SiglipClip
from retouch.clip.open_clip.model import OpenClip
from retouch.evaluate.per_class import ClassRow
from retouch.evaluate.results import Results
from retouch.evaluate.row import ControlPart
from retouch.export.export_model import ExportModel
from retouch.export.formats import LIBRARIES, Format, WriteReport
from retouch.export.tokenizer import context_length
from retouch.plotting.formatting import MISSING, percent, points, share
from retouch.report import run_metrics
from retouch.report.sentences import run_sentences
from retouch.sparse import fingerprint
from retouch.text.plural import count
from retouch.text.printable import printable
from retouch.version import VERSION

_ESCAPES = str.maketrans({c: f"&#{ord(c)};" for c in "\\`*_[]<>|~&#$!"})


def escape_markdown(text: object) -> str:
    """The text on one line, with every character escaped that Markdown or HTML would interpret."""
    return printable(" ".join(str(text).split())).translate(_ESCAPES)


_MAX_CLASSES = 200
"""How many classes the card lists; classes.json has all."""
_MAX_LOST = 10
_PACKAGES = ("retouch", "torch", "transformers", "python")


def card(model: ExportModel, to: Format, report: WriteReport) -> str:
    """README.md, with the front matter that the hub reads."""
    environment = Environment(
        loader=PackageLoader("retouch.export", ""),
        autoescape=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "escape_markdown": escape_markdown,
        "percent": lambda value: MISSING if value is None else percent(value),
        "points": points,
    }
    context = {
        "front_matter": _front_matter(model, to),
        "to": to,
        "library": LIBRARIES[to],
        "base": model.base,
        "code": _library_of(model) if to in ("peft", "deltas") else to,
        "base_model": _base_arguments(model),
        "report": report,
        "classes": model.classes,
        "vectors": model.class_vectors,
        "data_sets": _data_sets(model),
        "preprocess": model.clip.preprocess,
        "context_length": context_length(model.clip) if to == "onnx" else 0,
        "mask": ", `attention_mask`" if _is_dual_encoder(model) else "",
        "siglip": isinstance(model.clip, SiglipClip),
        "sigmoid": model.clip.logit_bias is not None,
        **_loaders(model, to),
        "fingerprint": fingerprint(model.clip.model),
        "version": VERSION,
        "run": model.run and _run(model, model.run),
    }
    return environment.get_template("card.md.j2").render(context)


def _data_sets(model: ExportModel) -> list[dict[str, Any]]:
    """The data sets that the model has learned classes of, with the templates of each."""
    learned = {each.domain for each in model.classes}
    groups = model.choices.groups if model.choices else ()
    return [
        {"name": group.name, "templates": list(group.templates)}
        for group in groups
        if group.name in learned or len(groups) == 1
    ]


def _loaders(model: ExportModel, to: Format) -> dict[str, str]:
    """The classes of transformers that load the model and its processor."""
    converted = to == "hf" and not isinstance(model.clip, HuggingFaceClip)
    plain = converted or type(model.clip.model).__name__ == "CLIPModel"
    processor = "SiglipProcessor" if isinstance(model.clip, SiglipClip) else "CLIPProcessor"
    return {"loader": "CLIPModel" if plain else "AutoModel", "processor": processor}


def _is_dual_encoder(model: ExportModel) -> bool:
    return type(model.clip.model).__name__ == "VisionTextDualEncoderModel"


def _library_of(model: ExportModel) -> Format:
    """The library that loads the base model."""
    return "open_clip" if isinstance(model.clip, OpenClip) else "hf"


def _base_arguments(model: ExportModel) -> dict[str, str]:
    """The base model, as Python strings: its name or path, and the weights of open_clip."""
    name, at, _ = model.clip.name.removeprefix("open_clip:").partition("@")
    architecture, _, tag = name.partition("/")
    weights = "path/to/its/weights.safetensors" if at else tag
    if not model.clip.name.startswith("open_clip:"):
        architecture, weights = "local-dir:path/to/the/base/model", ""
    path = model.hub or "path/to/the/base/model"
    return {"path": repr(path), "architecture": repr(architecture), "weights": repr(weights)}


def _front_matter(model: ExportModel, to: Format) -> str:
    tags = ["clip", "retouch", *(["continual-learning"] if model.classes else [])]
    fields: dict[str, Any] = {
        "library_name": LIBRARIES[to],
        "pipeline_tag": "zero-shot-image-classification",
        "tags": tags,
    }
    if model.hub:
        fields["base_model"] = model.hub
        if to in ("peft", "deltas"):
            fields["base_model_relation"] = "adapter"
    return yaml.safe_dump(fields, sort_keys=False)


def _run(model: ExportModel, run: Results) -> dict[str, Any]:
    """What the template says about the run."""
    metrics, learned = run_metrics.metrics(run), run.tasks[: run.done]
    config = {key: model.config[key] for key in ("method", "settings") if key in model.config}
    versions = [f"{k} {v}" for k, v in run.environment.items() if k in _PACKAGES]
    return {
        "results": run,
        "metrics": metrics,
        "before": run_metrics.starting_accuracy(run) if run.finished else None,
        "joint_before": run.rows[0].joint if run.finished else None,
        "verdict": run_sentences(run),
        "control_set": _control_set(model.config.get("control"), run.rows[-1].control_part),
        "num_test": sum(task.test for task in learned),
        "num_train": sum(task.train for task in learned),
        "moved": share(max(run.trained, default=0), run.parameters),
        "bf16": run.settings.get("precision") == "bf16",
        "rows": _class_rows(model, run)[:_MAX_CLASSES],
        "more": max(0, len(model.classes) - _MAX_CLASSES),
        "by_class": model.by_class is not None,
        "lost": _most_lost(model),
        "settings": yaml.safe_dump(config, sort_keys=False, allow_unicode=True),
        "environment": ", ".join(versions),
    }


def _control_set(control: dict[str, int] | None, part: ControlPart | None) -> str:
    """The control set in words; "" if it is not known."""
    if not control:
        return ""
    name = f"{count(control['images'], 'image')} of {count(control['classes'], 'class')}"
    return f"{part.images:,} of {name}" if part else name


def _class_rows(model: ExportModel, run: Results) -> list[dict[str, Any]]:
    """One row per class, with its accuracy before and after if the run measured it."""
    measured = {row.name: row for row in model.by_class.classes} if model.by_class else {}
    return [
        {"name": name, "task": number, "measured": measured.get(name)}
        for number, task in enumerate(run.tasks[: run.done], 1)
        for name in task.classes
    ]


def _most_lost(model: ExportModel) -> list[ClassRow]:
    """The control classes whose accuracy fell most."""
    rows = [r for r in model.by_class.classes if not r.learned] if model.by_class else []
    fell = [(r.before - r.after, r) for r in rows if r.before is not None and r.before > r.after]
    fell.sort(key=lambda pair: (-pair[0], pair[1].name))
    return [row for _, row in fell[:_MAX_LOST]]
