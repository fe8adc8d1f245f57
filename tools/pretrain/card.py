"""What the trained model can do, and the card that says so."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from retouch.builtin.images import TEMPLATES
from retouch.clip.hf.model import HuggingFaceClip
from retouch.data import Images, Stream, in_memory
from retouch.evaluate.evaluator import Evaluator
from tools.pictures import signs, world
from tools.pictures.canvas import Pixels
from tools.pictures.sets import draw_control, draw_sign

CARD = """\
# The small CLIP that comes with retouch

A `CLIPModel` from transformers, pre-trained from scratch on pictures of shapes, colors, textures,
counts, places, relations, letters and digits that `tools/pictures` draws. It is for trying out,
testing and demonstrating `retouch`, for nothing else: it knows no photographs.

| | |
|---|---|
| parameters | {parameters:,}, stored in 16 bits |
| visual tower | {size} × {size} pixels, patches of {patch}, width {width}, {layers} layers |
| text tower | {vocabulary} byte pairs, width {text_width}, {text_layers} layers |
| trained on | {pictures:,} pictures, {captions} captions each; {steps:,} steps of {batch} pairs |
| recipe | `python -m tools.pretrain`, seed {seed}, AdamW {lr:g}, bfloat16 |
| time | {drawing:.0f} s of drawing, {training:.0f} s of training, on one {device} |
| zero-shot, control set ({control_classes} held-out combinations) | {control:.1f} % |
| zero-shot, 25 traffic signs it never saw, by description | {descriptions:.1f} % (chance: 4 %) |
| zero-shot, the same signs, by name | {names:.1f} % |
"""


def zero_shot(clip: HuggingFaceClip, images: Images) -> float:
    """Accuracy in percent, with no training on these classes."""
    accuracy = Evaluator(Stream.split(images, images, tasks=1)).accuracy(clip, 1)
    assert accuracy is not None
    return accuracy


def measure(clip: HuggingFaceClip, per_class: int) -> dict[str, Any]:
    """The accuracies on the card, on freshly drawn pictures."""
    control = _images([c.name for c in world.CONTROL], draw_control, per_class)
    described = _images(
        [s.description for s in signs.CLASSES], partial(draw_sign, "signs-test"), per_class
    )
    named = replace(described, classes=[s.name for s in signs.CLASSES])
    return {
        "control_classes": len(control.classes),
        "control": zero_shot(clip, control),
        "descriptions": zero_shot(clip, described),
        "names": zero_shot(clip, named),
    }


def _images(classes: list[str], draw: Callable[[int, int], Pixels], per_class: int) -> Images:
    """The first pictures of each class, class after class."""
    labels = np.repeat(np.arange(len(classes)), per_class)
    pictures = [draw(label, n) for label in range(len(classes)) for n in range(per_class)]
    images = in_memory("drawn", classes, labels, np.stack(pictures))
    images.templates = TEMPLATES
    return images
