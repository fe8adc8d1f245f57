"""The training loop: CLIP's contrastive loss over batches of pictures and captions."""

import logging
import math
import time
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from retouch.clip.hf.model import HuggingFaceClip
from tools.pretrain.corpus import CAPTIONS
from tools.pretrain.model import CONTEXT

log = logging.getLogger("retouch")


def contrastive_loss(images: Tensor, texts: Tensor, scale: Tensor, tokens: Tensor) -> Tensor:
    """CLIP's loss over the batch; an equal caption elsewhere in the batch is no negative."""
    logits = scale * images @ texts.T
    targets = torch.arange(len(logits), device=logits.device)
    key = (tokens * torch.arange(1, CONTEXT + 1, device=tokens.device) ** 3).sum(1)
    same = (key[:, None] == key[None, :]) & (targets[:, None] != targets[None, :])
    logits = logits.masked_fill(same, -1e4)
    return (cross_entropy(logits, targets) + cross_entropy(logits.T, targets)) / 2


def make_optimizer(model: torch.nn.Module) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices alone; `train` sets the learning rate."""
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    rest = [p for p in model.parameters() if p.ndim < 2]
    return torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
        betas=(0.9, 0.98),
        eps=1e-6,
    )


def _encoders(model: Any, device: torch.device) -> tuple[Any, Any]:
    """The visual and the text tower, compiled on a GPU."""
    towers = model.get_image_features, model.get_text_features
    return (torch.compile(towers[0]), torch.compile(towers[1])) if device.type == "cuda" else towers


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
    """Pre-train in bfloat16, with a linear warm-up and a cosine decay."""
    model: Any = clip.model
    model.train()
    optimizer = make_optimizer(model)
    warmup = max(1, steps // 25)
    device = clip.device
    rng = torch.Generator(device).manual_seed(seed)
    encode_image, encode_text = _encoders(model, device)
    started = time.monotonic()
    for step in range(steps):
        rise, fall = (step + 1) / warmup, (1 + math.cos(math.pi * step / steps)) / 2
        for group in optimizer.param_groups:
            group["lr"] = lr * min(rise, fall)
        rows = torch.randint(len(pictures), (batch,), generator=rng, device=device)
        columns = torch.randint(CAPTIONS, (batch,), generator=rng, device=device)
        ids = tokens[rows, columns].long()
        with torch.autocast(device.type, torch.bfloat16):
            pixels = clip.preprocess.normalize(pictures[rows])
            images = encode_image(pixel_values=pixels).pooler_output
            texts = encode_text(input_ids=ids).pooler_output
        images, texts = normalize(images.float(), dim=-1), normalize(texts.float(), dim=-1)
        loss = contrastive_loss(images, texts, model.logit_scale.exp(), ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model.logit_scale.clamp_(max=math.log(100))
        if step % 500 == 0 or step == steps - 1:
            log.info("step %d loss %.3f, %.0f s", step, loss.item(), time.monotonic() - started)
    model.eval()
