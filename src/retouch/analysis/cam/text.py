"""The caption, the numbers and the files of a gScoreCAM figure."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from retouch.analysis.cam.figure import CONTOUR_LEVELS, ImageCams, cam_figure
from retouch.analysis.result_files import write_analysis

NAME = "cam"
TITLE = "What the neurons look at"
NEURON_CHOICES = {
    "gradient": "those with the largest gradients",
    "selected": "those whose weights the run selected most",
    "random": "drawn at random",
}


def write_cam(
    folder: str | Path, images: Sequence[ImageCams], settings: Mapping[str, Any]
) -> list[Path]:
    """The figure as PNG and SVG, the heat of every patch as CSV, caption and numbers as JSON.

    `settings` has the name of the `model`, its number of `blocks`, and how `neurons` were chosen.
    """
    facts = {
        "title": TITLE,
        "caption": caption(images, settings),
        "numbers": {**settings, **summarize(images)},
    }
    return write_analysis(folder, NAME, cam_figure(images), _patch_rows(images), facts)


def caption(images: Sequence[ImageCams], settings: Mapping[str, Any]) -> str:
    """What is drawn, for how many images, with which settings."""
    cam = next(iter(images[0].cams.values()))
    count = "one image" if len(images) == 1 else f"{len(images)} images"
    return (
        f"Heat maps over {count} (gScoreCAM, {settings['model']}): where {len(cam.neurons):,} of "
        f"the {cam.layer_width:,} neurons in the first MLP layer of visual block {cam.block} of "
        f"{settings['blocks']} look, {NEURON_CHOICES[settings['neurons']]}. Their values before "
        "the activation function mask the image; each counts by how well what is left fits the "
        f"text below. Contours at {CONTOUR_LEVELS[0]:.0%} and {CONTOUR_LEVELS[1]:.0%} of the "
        "maximum, which is marked by a cross; the number is the cosine similarity of the whole "
        "image and the text."
    ).replace("%", " %")


def summarize(images: Sequence[ImageCams]) -> dict[str, Any]:
    """For each image and heat map: the similarity, the peak, and the share of hot pixels."""
    return {
        "images": [
            {
                "file": image.name,
                "text": image.text,
                "maps": {
                    heading: {
                        "similarity": round(cam.similarity, 4),
                        "peak": list(cam.peak),
                        "hot": round(float((cam.heat >= CONTOUR_LEVELS[0]).mean()), 4),
                    }
                    for heading, cam in image.cams.items()
                },
            }
            for image in images
        ]
    }


def _patch_rows(images: Sequence[ImageCams]) -> list[dict[str, Any]]:
    """The heat of every patch, one row each."""
    return [
        {
            "image": image.name,
            "text": image.text,
            "model": heading,
            "row": row,
            "column": column,
            "heat": f"{heat:.4f}",
        }
        for image in images
        for heading, cam in image.cams.items()
        for (row, column), heat in np.ndenumerate(cam.patch_means)
    ]
