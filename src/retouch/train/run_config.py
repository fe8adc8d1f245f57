"""What is written to `config.yaml`: everything that the result of a run depends on."""

from typing import Any

from retouch.data.identity import (
    SET_DESCRIPTIONS,
    describe_difference,
    images_identity,
    pairs_identity,
)
from retouch.methods import Settings
from retouch.train.run_inputs import RunInputs


def run_config(inputs: RunInputs, weights: str) -> dict[str, Any]:
    """The config of a run; `weights` is the fingerprint of the model before the first task.

    Under "places" it also says where model and images lie, on which the result does not depend.
    """
    stream, control, reference = inputs.stream, inputs.control, inputs.reference
    config: dict[str, Any] = {
        "weights": weights,
        "method": inputs.method.model_dump(mode="json", exclude={"summary"}),
        "settings": result_settings(inputs.settings),
        "data": {
            "prompt": stream.train.prompt,
            "templates": list(stream.test.templates),
            "classes": list(stream.train.classes),  # by label, as is the state of a method
            "tasks": [stream.names(task.classes) for task in stream.tasks],
            "images": [len(task.train) for task in stream.tasks],
            "choices": stream.choices,
            "twins": stream.twins,
            "domains": [domain.to_dict() for domain in stream.train.domains],
        },
        "train": images_identity(stream.train),
        "test": images_identity(stream.test),
        "control": control and images_identity(control),
        "places": {
            "model": inputs.clip.name,
            "train": stream.train.name,
            "test": stream.test.name,
            "control": control and control.name,
        },
    }
    if inputs.method.needs_reference and reference is not None:
        config["reference"] = pairs_identity(reference)
        config["places"]["reference"] = reference.name
    if inputs.earlier is not None:
        config["learned before"] = inputs.earlier.results.done
    return config


def result_settings(settings: Settings) -> dict[str, Any]:
    """The settings that the result depends on: a run may be resumed with or without sharding."""
    return settings.model_dump(mode="json", exclude={"shard"})


def why_not_resumable(existing: dict[str, Any], config: dict[str, Any]) -> str:
    """How an existing run differs from the one with this config; empty where it is the same.

    Where images and model lie does not count: a run may be moved, and so may its data.
    """
    existing, config = {**existing, "places": None}, {**config, "places": None}
    if existing["weights"] == config["weights"]:
        # Before the settings, some of which are chosen to suit the images.
        for kind in SET_DESCRIPTIONS:
            if reason := describe_difference(kind, existing.get(kind), config.get(kind)):
                return f"that was started {reason}"
    return "" if existing == config else f"with other settings ({_difference(existing, config)})"


def _difference(existing: Any, new: Any, path: str = "") -> str:
    """The first difference between two configs, as text."""
    if isinstance(existing, dict) and isinstance(new, dict):
        for key in [*existing, *new]:
            if existing.get(key) != new.get(key) and key != "places":
                key_path = f"{path}.{key}".lstrip(".")
                return _difference(existing.get(key), new.get(key), key_path)
    return f"{path}: {str(existing)[:60]} in that run, {str(new)[:60]} now"
