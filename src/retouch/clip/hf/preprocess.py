"""Read and write a transformers model's preprocessing, `preprocessor_config.json`."""

import json
import logging
from pathlib import Path
from typing import Any

from retouch.clip.loading.safe_loading import find_file
from retouch.clip.preprocess import Preprocess
from retouch.errors import UserError, message_of

log = logging.getLogger("retouch")

PREPROCESSOR = "preprocessor_config.json"
PROCESSOR = "processor_config.json"
_FIXED_SIZE = ("clip", "siglip", "metaclip_2")
"""Visual towers whose position embeddings allow only one image size."""


def default_settings(vision_config: Any) -> dict[str, Any]:
    """What transformers uses for settings that a file leaves out: CLIP's, or SigLIP's."""
    if not vision_config.model_type.startswith("siglip"):
        return {}
    half, side = [0.5, 0.5, 0.5], vision_config.image_size
    return {"size": {"height": side, "width": side}, "image_mean": half, "image_std": half}


def read_preprocess(source: str, vision_config: Any, options: dict[str, Any]) -> Preprocess:
    """How a model's images are prepared; if no file says it, the usual way, with a warning."""
    from transformers import ImageProcessingMixin

    files = [name for name in (PREPROCESSOR, PROCESSOR) if find_file(source, name, options)]
    image_size, defaults = vision_config.image_size, default_settings(vision_config)
    kind = "SigLIP" if defaults else "CLIP"
    try:
        settings, _ = ImageProcessingMixin.get_image_processor_dict(source, **options)
        preprocess = Preprocess.from_processor({**defaults, **settings}, image_size)
    except Exception as error:  # the file may hold anything
        if files:
            raise UserError(
                f"{source}: {files[0]} is broken ({message_of(error)}). Take another copy of it, "
                f"or delete it to have images prepared as {kind} does"
            ) from error
        message = "%s has no %s; images are prepared as %s does, at %d pixels"
        log.warning(message, source, PREPROCESSOR, kind, image_size)
        return Preprocess.from_processor(defaults, image_size)
    if vision_config.model_type.startswith(_FIXED_SIZE) and set(preprocess.size) != {image_size}:
        height, width = preprocess.size
        raise UserError(
            f"{source}: {PREPROCESSOR} gives images of {width}×{height}, and the model takes "
            f"{image_size}×{image_size}; set {'size' if defaults else 'crop_size'} to that"
        )
    return preprocess


def write_preprocess(preprocess: Preprocess, folder: Path, processor: str) -> None:
    """Write `preprocessor_config.json` as this class of transformers reads it."""
    settings = {"image_processor_type": processor, **_processor_settings(preprocess)}
    (folder / PREPROCESSOR).write_text(json.dumps(settings, indent=1))


def _processor_settings(preprocess: Preprocess) -> dict[str, Any]:
    height, width = preprocess.size
    size = {"height": height, "width": width}
    shortest = preprocess.shortest
    return {
        "do_convert_rgb": True,
        "do_resize": True,
        "size": size if shortest is None else {"shortest_edge": shortest},
        "do_center_crop": shortest is not None,
        "crop_size": size,
        "resample": int(preprocess.resample),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocess.mean),
        "image_std": list(preprocess.std),
    }
