"""Two encoders as ONNX, and all that is needed to classify with onnxruntime alone."""

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from retouch.clip import Clip, Preprocess
from retouch.clip.hf import HuggingFaceClip
from retouch.clip.open_clip import OpenClip
from retouch.clip.zero_shot import classifier
from retouch.errors import UserError
from retouch.export.check import difference, features, read_alike, refuse_other, sample
from retouch.export.export_model import ExportModel
from retouch.export.plain import Written, of_ones_own
from retouch.export.tokenizer import by_file, context_of, full_length, one_file
from retouch.version import VERSION

TOLERANCE = 1e-4
"""onnxruntime fuses and reorders what torch computes step by step."""
_ONE_FILE = 1_500_000_000  # bytes; a protobuf ends at two gigabytes
_IMAGE, _TEXT = "image_encoder.onnx", "text_encoder.onnx"


class _Images(nn.Module):
    def __init__(self, clip: Clip) -> None:
        super().__init__()
        self.model, self._encode = clip.model, clip.encode_images

    def forward(self, pixel_values: Tensor) -> Tensor:
        return normalize(self._encode(pixel_values), dim=-1)


class _Texts(nn.Module):
    def __init__(self, clip: Clip) -> None:
        super().__init__()
        self.model, self._encode = clip.model, clip.encode_texts
        self._ids = "input_ids" if isinstance(clip, HuggingFaceClip) else "text"

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        tokens = {self._ids: input_ids}
        if attention_mask is not None:
            tokens["attention_mask"] = attention_mask
        return normalize(self._encode(tokens), dim=-1)


def write_onnx(subject: ExportModel, folder: Path) -> Written:
    """image_encoder.onnx, text_encoder.onnx, and the small files that go with them."""
    _needs()
    clip = subject.clip.to("cpu")
    if not isinstance(clip, HuggingFaceClip | OpenClip):
        raise of_ones_own(clip)
    limits = _write_tokenizer(subject, folder / "tokenizer.json")
    tokens = full_length(clip, sample(subject).prompts)
    pixels = torch.zeros(2, 3, *clip.preprocess.size)
    facts = _facts(clip, list(tokens))
    two = {key: value[:2] for key, value in tokens.items()}
    _write_encoder(_Images(clip), {"pixel_values": pixels}, folder / _IMAGE, facts)
    _write_encoder(_Texts(clip), two, folder / _TEXT, facts)
    _write_json(folder / "encoders.json", facts)
    _write_json(folder / "preprocess.json", preprocessing(clip.preprocess))
    if subject.classes:
        found = classifier(clip, subject.classes, subject.templates)
        np.save(folder / "class_features.npy", found.numpy(), allow_pickle=False)
    return Written(_against_torch(subject, folder, tokens), TOLERANCE, limits=limits)


def preprocessing(pixels: Preprocess) -> dict[str, Any]:
    """What happens to a picture before the image encoder, in its order."""
    return {
        "height": pixels.size[0],
        "width": pixels.size[1],
        "resize": "squash" if pixels.shortest is None else "shortest side",
        "shortest_side": pixels.shortest,
        "odd_pixel_of_crop": pixels.odd_pixel,
        "interpolation": pixels.resample.name.lower(),
        "scale": 1 / 255,
        "mean": list(pixels.mean),
        "std": list(pixels.std),
    }


def _facts(clip: Clip, inputs: list[str]) -> dict[str, Any]:
    bias = getattr(clip.model, "logit_bias", None)
    return {
        "image": {"file": _IMAGE, "inputs": ["pixel_values"], "output": "image_features"},
        "text": {"file": _TEXT, "inputs": inputs, "output": "text_features"},
        "features": "of length one",
        "context_length": context_of(clip),
        "logit_scale": float(clip.logit_scale.detach()),
        "logit_bias": None if bias is None else float(bias.detach()),
        "made_by": f"retouch {VERSION}",
    }


def _write_tokenizer(subject: ExportModel, file: Path) -> list[str]:
    """The tokenizer as one file; returns what the reader of the card should know of it."""
    clip, some = subject.clip, sample(subject)
    tokenizer, right = one_file(clip), full_length(clip, some.prompts)
    found = by_file(tokenizer, some.prompts, list(right))
    ours, theirs = (torch.cat(list(t.values()), dim=1).tolist() for t in (right, found))
    _, limits = read_alike(some, ours, theirs, file.name)
    tokenizer.save(str(file))
    return limits


def _write_encoder(
    encoder: nn.Module, example: Mapping[str, Tensor], file: Path, facts: dict[str, Any]
) -> None:
    """One encoder, for any number of pictures or prompts at a time."""
    batch, fast = torch.export.Dim("batch"), torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # a fused attention that ONNX does not know
    try:
        program = torch.onnx.export(
            encoder.eval(),
            kwargs=dict(example),
            input_names=list(example),
            output_names=[facts[file.stem.partition("_")[0]]["output"]],
            dynamic_shapes={name: {0: batch} for name in example},
            dynamo=True,
            verbose=False,
        )
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    assert program is not None
    for node in program.model.graph.all_nodes():  # the exporter notes its own source files there
        node.metadata_props.clear()
        node.doc_string = None
    program.model.metadata_props["retouch"] = json.dumps(facts)
    size = sum(p.numel() * p.element_size() for p in encoder.parameters())
    program.save(str(file), external_data=size > _ONE_FILE)


@torch.no_grad()
def _against_torch(subject: ExportModel, folder: Path, tokens: Mapping[str, Tensor]) -> float:
    """The largest difference between what onnxruntime and torch say of the sample."""
    some = sample(subject)
    pictures = {"pixel_values": subject.clip.preprocess.normalize(some.pixels)}
    found = run(folder / _IMAGE, pictures), run(folder / _TEXT, tokens)
    largest = difference(features(subject.clip, some), found)
    return refuse_other(largest, TOLERANCE, "onnxruntime")


def run(file: Path, inputs: Mapping[str, Tensor]) -> Tensor:
    """One encoder's answer by onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(file), options, ["CPUExecutionProvider"])
    (found,) = session.run(None, {name: value.numpy() for name, value in inputs.items()})
    return torch.from_numpy(np.asarray(found))


def _write_json(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value, indent=1, ensure_ascii=False), "utf-8")


def _needs() -> None:
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise UserError(f"no {', '.join(missing)} here: pip install 'retouch[onnx]'")
