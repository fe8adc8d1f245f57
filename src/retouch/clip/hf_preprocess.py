"""Read and write a transformers model's preprocessing, `preprocessor_config.json`."""

import json
import logging
from pathlib import Path
from typing import Any

from retouch.clip.preprocess import Preprocess
from retouch.clip.safe_loading import find_file
from retouch.errors import UserError, message_of

log = logging.getLogger("retouch")

PREPROCESSOR = "preprocessor_config.json"
PROCESSOR = "processor_config.json"


def read_preprocess(source: str, vision_config: Any, options: dict[str, Any]) -> Preprocess:
    """How a model's images are prepared; CLIP's way, with a warning, if no file says."""
    from transformers import ImageProcessingMixin

    files = [name for name in (PREPROCESSOR, PROCESSOR) if find_file(source, name, options)]
    image_size = vision_config.image_size
    try:
        settings, _ = ImageProcessingMixin.get_image_processor_dict(source, **options)
        preprocess = Preprocess.from_processor(settings, image_size)
    except Exception as error:  # the file may hold anything
        if files:
            raise UserError(
                f"{source}: {files[0]} is broken ({message_of(error)}). Take another copy of it, "
                "or delete it to have images prepared as CLIP does"
            ) from error
        message = "%s has no %s; images are prepared as CLIP does, at %d pixels"
        log.warning(message, source, PREPROCESSOR, image_size)
        return Preprocess.from_processor({}, image_size)
    if vision_config.model_type.startswith("clip") and set(preprocess.size) != {image_size}:
        height, width = preprocess.size
        raise UserError(
            f"{source}: {PREPROCESSOR} gives images of {width}×{height}, and the model takes "
            f"{image_size}×{image_size}; set crop_size to that"
        )
    return preprocess


def write_preprocess(preprocess: Preprocess, folder: Path) -> None:
    """Write `preprocessor_config.json` as transformers reads it."""
    settings = _processor_settings(preprocess)
    (folder / PREPROCESSOR).write_text(json.dumps(settings, indent=1))


def _processor_settings(preprocess: Preprocess) -> dict[str, Any]:
    height, width = preprocess.size
    size = {"height": height, "width": width}
    shortest = preprocess.shortest
    return {
        "image_processor_type": "CLIPImageProcessor",
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
