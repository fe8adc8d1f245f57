"""Pre-train the small CLIP that comes with the package, on pictures of the built-in world.

    python -m retouch.builtin.pretrain --out model

draws the pictures, trains with CLIP's loss and writes the model with its card. It was run once on
a GPU, where it takes minutes; the result is committed beside this file. On a CPU it would take a
day; `--pictures 2000 --steps 20` shows that it works.
"""

import json
import logging
import math
import multiprocessing
import time
from collections.abc import Sequence
from ctypes import c_uint8
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from retouch.builtin.images import control_images, sign_images
from retouch.builtin.pictures import world
from retouch.clip.hf import HuggingFaceClip
from retouch.clip.preprocess import Preprocess
from retouch.clip.torchvision_compat import patch_torchvision
from retouch.data import Images
from retouch.evaluate.evaluator import Evaluator

log = logging.getLogger("retouch")

SIZE, PATCH, CONTEXT, VOCABULARY = 64, 16, 32, 1000
CAPTIONS = 3  # for each picture
CHUNK = 500  # pictures with a seed in common
# The end is token 3: transformers reads a text at its largest token where a model says it is 2.
PAD, START, UNKNOWN, END = "<pad>", "<start>", "<unknown>", "<end>"


def make_tokenizer(seed: int, captions: int = 50_000) -> Any:
    """A byte-pair vocabulary of the world's captions; every letter is in it, so any word can be."""
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

    tokenizer = tokenizers.Tokenizer(models.BPE(end_of_word_suffix="</w>", unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    letters = [chr(c) for c in range(32, 127)]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, START, UNKNOWN, END],
        end_of_word_suffix="</w>",
        initial_alphabet=letters + [f"{letter}</w>" for letter in letters],
        show_progress=False,
    )
    tokenizer.train_from_iterator(world.corpus(np.random.default_rng(seed), captions), trainer)
    ends = [(START, tokenizer.token_to_id(START)), (END, tokenizer.token_to_id(END))]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{START} $A {END}", special_tokens=ends
    )
    return tokenizer


def wrap(tokenizer: Any) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=START,
        eos_token=END,
        model_max_length=CONTEXT,
    )


def make_model(tokenizer: Any, width: int, layers: int, text_width: int, text_layers: int) -> Any:
    """A CLIPModel of transformers', small enough for two CPU cores."""
    from transformers import CLIPConfig, CLIPModel

    def tower(width: int, layers: int) -> dict[str, int]:
        shape = {"hidden_size": width, "intermediate_size": 4 * width, "projection_dim": 128}
        return {**shape, "num_hidden_layers": layers, "num_attention_heads": width // 32}

    tokens = {
        f"{name}_token_id": tokenizer.token_to_id(token)
        for name, token in (("pad", PAD), ("bos", START), ("eos", END))
    }
    text = {**tower(text_width, text_layers), **tokens, "max_position_embeddings": CONTEXT}
    return CLIPModel(
        CLIPConfig(
            text_config={**text, "vocab_size": tokenizer.get_vocab_size()},
            vision_config={**tower(width, layers), "image_size": SIZE, "patch_size": PATCH},
            projection_dim=128,
        )
    )


_board: Any = None  # the pictures, in memory that all processes share


def _draw_chunk(task: tuple[int, int]) -> list[list[str]]:
    seed, number = task
    rng = np.random.default_rng([seed, number])
    board = np.frombuffer(_board, np.uint8).reshape(-1, SIZE, SIZE, 3)
    captions = []
    for place in range(number * CHUNK, (number + 1) * CHUNK):
        scene = world.choose_scene(rng)
        board[place] = world.draw_scene(scene, rng)
        captions.append([world.describe(scene, rng) for _ in range(CAPTIONS)])
    return captions


def draw_world(count: int, seed: int) -> tuple[NDArray[np.uint8], list[list[str]]]:
    """Pictures [count, 64, 64, 3] and a few true captions of each, drawn by all processors."""
    global _board
    _board = multiprocessing.RawArray(c_uint8, count * SIZE * SIZE * 3)
    tasks = [(seed, number) for number in range(count // CHUNK)]
    with multiprocessing.get_context("fork").Pool() as pool:
        captions = [row for rows in pool.imap(_draw_chunk, tasks, chunksize=4) for row in rows]
    return np.frombuffer(_board, np.uint8).reshape(-1, SIZE, SIZE, 3), captions


def encode(tokenizer: Any, captions: Sequence[Sequence[str]]) -> Tensor:
    """Captions as tokens [N, CAPTIONS, CONTEXT].

    A tenth of the merges is left out at random, so that the pieces of words are learned as well:
    the model will meet words that it has never seen.
    """
    tokenizer.model.dropout = 0.1
    tokenizer.enable_padding(length=CONTEXT)
    tokenizer.enable_truncation(CONTEXT)
    flat = [caption for row in captions for caption in row]
    ids = np.array([e.ids for e in tokenizer.encode_batch(flat)], np.int16)
    tokenizer.model.dropout = None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return torch.from_numpy(ids).view(len(captions), CAPTIONS, CONTEXT)


def contrast(images: Tensor, texts: Tensor, scale: Tensor, tokens: Tensor) -> Tensor:
    """CLIP's loss over the batch; an equal caption elsewhere in it is no negative."""
    logits = scale * images @ texts.T
    own = torch.arange(len(logits), device=logits.device)
    key = (tokens * torch.arange(1, CONTEXT + 1, device=tokens.device) ** 3).sum(1)
    same = (key[:, None] == key[None, :]) & (own[:, None] != own[None, :])
    logits = logits.masked_fill(same, -1e4)
    return (cross_entropy(logits, own) + cross_entropy(logits.T, own)) / 2


def train(
    clip: HuggingFaceClip,
    pictures: Tensor,
    tokens: Tensor,
    *,
    steps: int,
    batch: int,
    lr: float,
    seed: int,
) -> None:
    """CLIP's pre-training: AdamW, a warm-up and half a cosine, in bfloat16."""
    model: Any = clip.model
    model.train()
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    rest = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
        betas=(0.9, 0.98),
        eps=1e-6,
    )
    warm = max(1, steps // 25)
    device = clip.device
    rng = torch.Generator(device).manual_seed(seed)
    vision = (
        torch.compile(model.get_image_features)
        if device.type == "cuda"
        else model.get_image_features
    )
    language = (
        torch.compile(model.get_text_features) if device.type == "cuda" else model.get_text_features
    )
    began = time.monotonic()
    for step in range(steps):
        rise, fall = (step + 1) / warm, (1 + math.cos(math.pi * step / steps)) / 2
        for group in optimizer.param_groups:
            group["lr"] = lr * min(rise, fall)
        chosen = torch.randint(len(pictures), (batch,), generator=rng, device=device)
        which = torch.randint(CAPTIONS, (batch,), generator=rng, device=device)
        ids = tokens[chosen, which].long()
        with torch.autocast(device.type, torch.bfloat16):
            images = vision(pixel_values=clip.preprocess.normalize(pictures[chosen])).pooler_output
            texts = language(input_ids=ids).pooler_output
        images, texts = normalize(images.float(), dim=-1), normalize(texts.float(), dim=-1)
        loss = contrast(images, texts, model.logit_scale.exp(), ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model.logit_scale.clamp_(max=math.log(100))
        if step % 500 == 0 or step == steps - 1:
            log.info("step %d loss %.3f, %.0f s", step, loss.item(), time.monotonic() - began)
    model.eval()


def zero_shot(clip: HuggingFaceClip, images: Images) -> float:
    """Accuracy in percent without any training on these classes."""
    from retouch.data import Stream

    stream = Stream.split(images, images, tasks=1)
    found = Evaluator(stream).accuracy(clip, 1)
    assert found is not None
    return found


CARD = """\
# The small CLIP that comes with retouch

A `CLIPModel` of transformers', pre-trained from nothing on pictures of shapes, colours, textures,
counts, places, relations, letters and digits that `retouch.builtin.pictures` draws. It is for
trying out, testing and demonstrating `retouch`, for nothing else: it knows no photographs.

| | |
|---|---|
| parameters | {parameters:,}, stored in 16 bits |
| visual tower | {size} × {size} pixels, patches of {patch}, width {width}, {layers} layers |
| text tower | {vocabulary} byte pairs, width {text_width}, {text_layers} layers |
| trained on | {pictures:,} pictures, {captions} captions each; {steps:,} steps of {batch} pairs |
| recipe | `python -m retouch.builtin.pretrain`, seed {seed}, AdamW {lr:g}, bfloat16 |
| time | {drawing:.0f} s of drawing, {training:.0f} s of training, on one {device} |
| zero-shot, control set ({control_classes} held-out combinations) | {control:.1f} % |
| zero-shot, 25 traffic signs it never saw, called by their looks | {looks:.1f} % (chance: 4 %) |
| zero-shot, the same signs, called by their names | {names:.1f} % |
"""


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
) -> None:
    """Pre-train the built-in model."""
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    patch_torchvision()
    began = time.monotonic()
    board, captions = draw_world(pictures, seed)
    drawing = time.monotonic() - began
    log.info("drew %d pictures in %.0f s", len(board), drawing)

    tokenizer = make_tokenizer(seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(seed)
    model = make_model(tokenizer, width, layers, text_width, text_layers).to(device)
    ids = encode(tokenizer, captions).to(device)
    log.info("encoded the captions after %.0f s", time.monotonic() - began)
    clip = HuggingFaceClip(model, wrap(tokenizer), Preprocess(size=(SIZE, SIZE)), "builtin")
    began = time.monotonic()
    train(clip, torch.from_numpy(board).to(device), ids, steps=steps, batch=batch, lr=lr, seed=seed)
    training = time.monotonic() - began

    model.half().float()  # judged as it will be loaded
    control = control_images(20)
    found = {
        "control": zero_shot(clip, control),
        "looks": zero_shot(clip, sign_images("test", 20)),
        "names": zero_shot(clip, sign_images("test", 20, "name")),
    }
    log.info("%s", json.dumps(found))
    model.half()
    clip.save(out)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    shape = {"width": width, "layers": layers, "text_width": text_width, "text_layers": text_layers}
    recipe = {
        "pictures": len(board),
        "captions": CAPTIONS,
        "steps": steps,
        "batch": batch,
        "lr": lr,
    }
    numbers = {"parameters": clip.size, "size": SIZE, "patch": PATCH, "seed": seed, **found}
    times = {"drawing": drawing, "training": training, "device": name}
    sizes = {"vocabulary": tokenizer.get_vocab_size(), "control_classes": len(control.classes)}
    (out / "README.md").write_text(CARD.format(**shape, **recipe, **numbers, **times, **sizes))


if __name__ == "__main__":
    typer.run(main)
