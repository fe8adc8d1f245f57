"""What is written to `config.yaml`: everything that the result of a run depends on."""

from typing import Any

from retouch.data.identity import (
    SET_DESCRIPTIONS,
    describe_difference,
    images_identity,
    pairs_identity,
)
from retouch.methods.method_config import method_config
from retouch.train.plan import Plan
from retouch.train.run_folder.config_schema import result_settings


def run_config(plan: Plan, weights: str) -> dict[str, Any]:
    """The config of a run; `weights` is the fingerprint of the model before the first task.

    It is the content of a `RunConfig`. It also has what the result does not depend on: under
    "places", where model and images lie, and of the method, its description and whether images may
    be stored.
    """
    stream, control = plan.stream, plan.control
    reference = plan.reference if plan.method.needs_reference else None
    return {
        "weights": weights,
        "method": method_config(plan.method),
        "settings": result_settings(plan.settings),
        "data": {
            "prompt": stream.train.prompt,
            "templates": list(stream.test.templates),
            "classes": list(stream.train.classes),
            "tasks": [stream.names(task.classes) for task in stream.tasks],
            "images": [len(task.train) for task in stream.tasks],
            "choices": stream.choices,
            "twins": stream.twins,
            "domains": [domain.to_dict() for domain in stream.train.domains],
        },
        "train": images_identity(stream.train),
        "test": images_identity(stream.test),
        "control": control and images_identity(control),
        "reference": reference and pairs_identity(reference),
        "learned before": plan.earlier.results.done if plan.earlier else 0,
        "places": {
            "model": plan.clip.name,
            "train": stream.train.name,
            "test": stream.test.name,
            "control": control and control.name,
            "reference": reference and reference.name,
        },
    }


def why_not_resumable(existing: dict[str, Any], config: dict[str, Any]) -> str:
    """How an existing run differs from the one with this config; empty where it is the same.

    Where images and model are does not count: a run may be moved, and so may its data.
    """
    existing, config = _comparable(existing), _comparable(config)
    if existing["weights"] == config["weights"]:
        # Before the settings, some of which are chosen to suit the images.
        for kind in SET_DESCRIPTIONS:
            if reason := describe_difference(kind, existing.get(kind), config.get(kind)):
                return f"that was started {reason}"
    return "" if existing == config else f"with other settings ({_difference(existing, config)})"


def _comparable(config: dict[str, Any]) -> dict[str, Any]:
    """What the result depends on."""
    other = ("summary", "store_images")
    method = {key: value for key, value in config["method"].items() if key not in other}
    return {**config, "method": method, "places": None}


def _difference(existing: Any, new: Any, path: str = "") -> str:
    """The first difference between two configs, as text."""
    if isinstance(existing, dict) and isinstance(new, dict):
        for key in [*existing, *new]:
            if existing.get(key) != new.get(key) and key != "places":
                key_path = f"{path}.{key}".lstrip(".")
                return _difference(existing.get(key), new.get(key), key_path)
    return f"{path}: {str(existing)[:60]} in that run, {str(new)[:60]} now"
