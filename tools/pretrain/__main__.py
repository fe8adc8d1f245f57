"""Pre-train the small CLIP that comes with the package, on pictures of the built-in world.

    python -m tools.pretrain --out model

draws the pictures, trains with CLIP's loss and writes the model with its card. It was run once on
a GPU, where it takes minutes; the result is committed in `src/retouch/builtin/model`. On a CPU it
would take a day; `--pictures 2000 --steps 20` shows that it works.
"""

import json
import logging
import time
from pathlib import Path
from typing import Annotated

import torch
import typer

from retouch.clip.hf.model import HuggingFaceClip
from retouch.clip.preprocess import Preprocess
from retouch.torchvision_compat import patch_torchvision
from tools.pretrain.card import CARD, measure
from tools.pretrain.corpus import CAPTIONS, draw_world, tokenize
from tools.pretrain.model import PATCH, SIZE, make_model, make_tokenizer, wrap_tokenizer
from tools.pretrain.train import train

log = logging.getLogger("retouch")


def main(
    out: Annotated[Path, typer.Option(help="Folder to write the model to.")],
    pictures: int = 1_000_000,
    steps: int = 10_000,
    batch: int = 2048,
    lr: float = 1e-3,
    width: int = 192,
    layers: int = 6,
    text_width: int = 128,
    text_layers: int = 4,
    seed: int = 0,
    vocabulary_captions: Annotated[int, typer.Option(help="To train the tokenizer on.")] = 50_000,
    per_class: Annotated[int, typer.Option(help="Pictures per class to evaluate on.")] = 20,
) -> None:
    """Pre-train the built-in model."""
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    patch_torchvision()
    started = time.monotonic()
    pixels, captions = draw_world(pictures, seed)
    drawing = time.monotonic() - started
    log.info("drew %d pictures in %.0f s", len(pixels), drawing)

    tokenizer = make_tokenizer(seed, vocabulary_captions)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(seed)
    shape = {"width": width, "layers": layers, "text_width": text_width, "text_layers": text_layers}
    model = make_model(tokenizer, **shape).to(device)
    ids = tokenize(tokenizer, captions).to(device)
    log.info("tokenized the captions after %.0f s", time.monotonic() - started)
    preprocess = Preprocess(size=(SIZE, SIZE))
    clip = HuggingFaceClip(model, wrap_tokenizer(tokenizer), preprocess, "builtin")
    started = time.monotonic()
    images = torch.from_numpy(pixels).to(device)
    train(clip, images, ids, steps=steps, batch=batch, lr=lr, seed=seed)
    training = time.monotonic() - started

    model.half().float()  # measured as it will be loaded
    accuracies = measure(clip, per_class)
    log.info("%s", json.dumps(accuracies))
    model.half()
    clip.save(out)
    card = CARD.format(
        parameters=clip.size,
        size=SIZE,
        patch=PATCH,
        vocabulary=tokenizer.get_vocab_size(),
        pictures=len(pixels),
        captions=CAPTIONS,
        steps=steps,
        batch=batch,
        lr=lr,
        seed=seed,
        drawing=drawing,
        training=training,
        device=torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        **shape,
        **accuracies,
    )
    (out / "README.md").write_text(card)


if __name__ == "__main__":
    typer.run(main)
