"""How well does a language model predict texts? Bits per byte, with an interval over documents.

Bits per byte = loss per token / ln 2 × tokens / bytes: models with other tokenizers compare.
Documents, not tokens, are what chance draws, so intervals are bootstrapped over documents; for the
change of a model they are paired, as the same documents are measured before and after.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from retouch.arguments import check_arguments
from retouch.errors import UserError
from retouch.text.plural import count

RESAMPLES = 1000
"""Bootstrap samples of the documents."""
MAX_LENGTH = 1024
"""Tokens of a document that are read at a time, if the model has room for them."""
MAX_LOGITS = 2**28
"""Logits that are computed at a time."""

Interval = tuple[float, float]


@dataclass(frozen=True)
class BitsPerByte:
    """How many bits a model needs for some documents."""

    bits: NDArray[np.float64]
    """The bits of each document."""
    num_bytes: NDArray[np.float64]
    """The bytes of each document, in UTF-8."""

    @property
    def value(self) -> float:
        """Bits per byte over all documents."""
        return float(self.bits.sum() / self.num_bytes.sum())

    @property
    def interval(self) -> Interval:
        """The central 95 % of bits per byte over bootstrapped documents."""
        return _interval(self.bits, self.num_bytes)

    def increase(self, before: "BitsPerByte") -> float:
        """How many bits per byte more than before: what was lost.

        Args:
            before: The same documents, measured before.
        """
        return self.value - before.value

    def increase_interval(self, before: "BitsPerByte") -> Interval:
        """The central 95 % of the increase over bootstrapped documents.

        Args:
            before: The same documents, measured before.
        """
        return _interval(self.bits - before.bits, self.num_bytes)


def _interval(bits: NDArray[np.float64], num_bytes: NDArray[np.float64]) -> Interval:
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(bits), size=(RESAMPLES, len(bits)))
    values = bits[drawn].sum(axis=1) / num_bytes[drawn].sum(axis=1)
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


@dataclass(frozen=True)
class EncodedTexts:
    """Documents as batches of token ids, prepared once."""

    batches: list[tuple[Tensor, Tensor]]
    """Token ids, padded, and the document of each token; -1 where nothing is predicted."""
    tokens: NDArray[np.float64]
    """The tokens of each document."""
    num_bytes: NDArray[np.float64]
    """The bytes of each document."""


def encode_texts(
    texts: Sequence[str],
    tokenizer: Any,
    *,
    max_length: int = MAX_LENGTH,
    vocab_size: int = 2**15,
    device: torch.device | str = "cpu",
) -> EncodedTexts:
    """Documents as batches of token ids; a long document is cut into pieces.

    Args:
        texts: The documents.
        tokenizer: The model's tokenizer.
        max_length: Tokens per piece.
        vocab_size: Logits per token, which limit the size of a batch.
        device: Where to put the batches.
    """
    ids = [tokenizer(text, verbose=False)["input_ids"] for text in texts]
    special = len(tokenizer("")["input_ids"])
    pieces = [
        (number, each[start : start + max_length])
        for number, each in enumerate(ids)
        for start in range(0, len(each), max_length)
        if len(each) - start > 1
    ]
    pieces.sort(key=lambda piece: -len(piece[1]))
    batches = []
    while pieces:
        size = max(1, MAX_LOGITS // (vocab_size * len(pieces[0][1])))
        batches.append(_padded(pieces[:size], device))
        pieces = pieces[size:]
    return EncodedTexts(
        batches,
        np.array([max(1, len(each) - special) for each in ids], np.float64),
        np.array([len(text.encode()) for text in texts], np.float64),
    )


def _padded(
    pieces: Sequence[tuple[int, Sequence[int]]], device: torch.device | str
) -> tuple[Tensor, Tensor]:
    """Pieces as rows, and the document that each predicted token belongs to."""
    longest = len(pieces[0][1])
    ids = torch.zeros(len(pieces), longest, dtype=torch.long)
    documents = torch.full((len(pieces), longest), -1)
    for row, (document, piece) in enumerate(pieces):
        ids[row, : len(piece)] = torch.tensor(piece)
        documents[row, 1 : len(piece)] = document
    return ids.to(device), documents.to(device)


@torch.no_grad()
def bits_of(
    model: nn.Module, texts: EncodedTexts, autocast: AbstractContextManager[Any] | None = None
) -> BitsPerByte:
    """The bits that a model needs for documents that were encoded before.

    Args:
        model: A causal language model; it is left in the mode that it is in.
        texts: The documents.
        autocast: A context for the forward passes.
    """
    training = model.training
    model.eval()
    device = texts.batches[0][0].device
    nats = torch.zeros(len(texts.tokens), dtype=torch.float64, device=device)
    predicted = torch.zeros_like(nats)
    with autocast or nullcontext():
        for ids, documents in texts.batches:
            logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
            losses = cross_entropy(
                logits.reshape(-1, logits.shape[-1]).float(), ids[:, 1:].flatten(), reduction="none"
            )
            target = documents[:, 1:].flatten()
            used = target >= 0
            nats.index_add_(0, target[used], losses[used].double())
            predicted.index_add_(0, target[used], torch.ones_like(losses[used]).double())
    model.train(training)
    per_token = (nats / predicted.clamp(min=1)).cpu().numpy()
    return BitsPerByte(per_token * texts.tokens / log(2), texts.num_bytes)


@check_arguments()
def bits_per_byte(
    model: nn.Module, tokenizer: Any, texts: Sequence[str], max_length: int | None = None
) -> BitsPerByte:
    """How many bits per byte a causal language model needs for documents.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        texts: The documents.
        max_length: Tokens that are read at a time. Default: what the model has room for, and at
            most 1,024.
    """
    device = next(model.parameters()).device
    return bits_of(model, encode_for(model, tokenizer, texts, max_length, device))


def encode_for(
    model: Any,
    tokenizer: Any,
    texts: Sequence[str],
    max_length: int | None,
    device: torch.device | str,
) -> EncodedTexts:
    """Documents encoded for a model: with its context, and batches that fit its vocabulary."""
    config = model.config.get_text_config()
    room = getattr(config, "max_position_embeddings", None) or MAX_LENGTH
    if max_length is not None and max_length < 2:
        raise UserError(f"max_length={max_length} leaves no token to predict; choose 2 or more")
    return encode_texts(
        check_texts("the texts", texts),
        tokenizer,
        max_length=min(max_length or MAX_LENGTH, room),
        vocab_size=config.vocab_size,
        device=device,
    )


def read_texts(name: str, source: str | Path | Sequence[str]) -> list[str]:
    """Documents from a file (JSON lines with `text`, or plain text as one document), or as given.

    Args:
        name: What messages call them.
        source: The file, or the documents.
    """
    if not isinstance(source, str | Path):
        return check_texts(name, source)
    file = Path(source)
    if not file.is_file():
        raise UserError(f"there is no file {file}; give JSON lines with `text`, or a text file")
    try:
        content = file.read_text("utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{file} is not a text file in UTF-8; convert it") from None
    if file.suffix not in (".jsonl", ".json"):
        return check_texts(str(file), [content])
    rows = []
    for number, line in enumerate(content.splitlines(), 1):
        try:
            row = json.loads(line) if line.strip() else {"text": ""}
        except ValueError:
            row = None
        if not isinstance(row, Mapping) or not isinstance(row.get("text"), str):
            raise UserError(f'line {number} of {file} has no text; it must be like {{"text": …}}')
        rows.append(row["text"])
    return check_texts(str(file), rows)


def check_texts(name: str, texts: Sequence[str]) -> list[str]:
    """The documents that are not empty; none at all are refused.

    Args:
        name: What messages call them.
        texts: The documents.
    """
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise UserError(f"document {number} of {name} is {type(text).__name__}; give strings")
    filled = [text for text in texts if text.strip()]
    if not filled:
        raise UserError(
            f"{name} has no text ({count(len(texts), 'document')}); a control set needs documents "
            "of what the model could do before"
        )
    return filled
