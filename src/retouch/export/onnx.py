"""Write two encoders as ONNX, with everything needed to classify with onnxruntime alone."""

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
from retouch.clip.hf.model import HuggingFaceClip
from retouch.clip.open_clip.model import OpenClip
from retouch.errors import UserError
from retouch.evaluate.class_features import ClassFeatures
from retouch.export.check import (
    drop_differing_prompts,
    features,
    max_difference,
    refuse_difference,
    sample,
)
from retouch.export.export_model import ExportModel
from retouch.export.formats import WriteReport
from retouch.export.pytorch import unsupported_model
from retouch.export.tokenizer import (
    context_length,
    standalone_tokenizer,
    tokenize_full_length,
    tokenize_standalone,
)
from retouch.version import VERSION

TOLERANCE = 1e-4
"""onnxruntime fuses and reorders what torch computes step by step."""
_SINGLE_FILE_LIMIT = 1_500_000_000  # bytes; a protobuf must stay below two gigabytes
_IMAGE_FILE, _TEXT_FILE = "image_encoder.onnx", "text_encoder.onnx"


class _ImageEncoder(nn.Module):
    def __init__(self, clip: Clip) -> None:
        super().__init__()
        self.model, self._encode = clip.model, clip.encode_images

    def forward(self, pixel_values: Tensor) -> Tensor:
        return normalize(self._encode(pixel_values), dim=-1)


class _TextEncoder(nn.Module):
    def __init__(self, clip: Clip) -> None:
        super().__init__()
        self.model, self._encode = clip.model, clip.encode_texts
        self._ids_name = "input_ids" if isinstance(clip, HuggingFaceClip) else "text"

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        tokens = {self._ids_name: input_ids}
        if attention_mask is not None:
            tokens["attention_mask"] = attention_mask
        return normalize(self._encode(tokens), dim=-1)


def write_onnx(model: ExportModel, folder: Path) -> WriteReport:
    """image_encoder.onnx, text_encoder.onnx, and the small files that go with them."""
    _check_installed()
    clip = model.clip.to("cpu")
    if not isinstance(clip, HuggingFaceClip | OpenClip):
        raise unsupported_model(clip)
    notes = _write_tokenizer(model, folder / "tokenizer.json")
    tokens = tokenize_full_length(clip, sample(model).prompts)
    pixels = torch.zeros(2, 3, *clip.preprocess.size)
    metadata = _metadata(clip, list(tokens))
    example_tokens = {key: value[:2] for key, value in tokens.items()}
    _write_encoder(_ImageEncoder(clip), {"pixel_values": pixels}, folder / _IMAGE_FILE, metadata)
    _write_encoder(_TextEncoder(clip), example_tokens, folder / _TEXT_FILE, metadata)
    _write_json(folder / "encoders.json", metadata)
    _write_json(folder / "preprocess.json", preprocess_config(clip.preprocess))
    if model.run is not None and model.choices is not None:
        names = model.choices.seen(model.run.done)
        class_features = ClassFeatures(clip, names, model.choices.groups)(clip)
        np.save(folder / "class_features.npy", class_features.texts.numpy(), allow_pickle=False)
    return WriteReport(_compare_with_torch(model, folder, tokens), TOLERANCE, limits=notes)


def preprocess_config(preprocess: Preprocess) -> dict[str, Any]:
    """The preprocessing of an image, step by step."""
    return {
        "height": preprocess.size[0],
        "width": preprocess.size[1],
        "resize": "squash" if preprocess.shortest is None else "shortest side",
        "shortest_side": preprocess.shortest,
        "odd_pixel_of_crop": preprocess.odd_pixel,
        "interpolation": preprocess.resample.name.lower(),
        "scale": 1 / 255,
        "mean": list(preprocess.mean),
        "std": list(preprocess.std),
    }


def _metadata(clip: Clip, inputs: list[str]) -> dict[str, Any]:
    bias = clip.logit_bias
    return {
        "image": {"file": _IMAGE_FILE, "inputs": ["pixel_values"], "output": "image_features"},
        "text": {"file": _TEXT_FILE, "inputs": inputs, "output": "text_features"},
        "features": "normalized to length 1",
        "context_length": context_length(clip),
        "logit_scale": float(clip.logit_scale.detach()),
        "logit_bias": None if bias is None else float(bias.detach()),
        "made_by": f"retouch {VERSION}",
    }


def _write_tokenizer(model: ExportModel, file: Path) -> list[str]:
    """Write the tokenizer as one file; returns notes for the model card."""
    clip, inputs = model.clip, sample(model)
    tokenizer = standalone_tokenizer(clip)
    expected = tokenize_full_length(clip, inputs.prompts)
    tokens = tokenize_standalone(tokenizer, inputs.prompts, list(expected))
    ours, theirs = (torch.cat(list(t.values()), dim=1).tolist() for t in (expected, tokens))
    _, notes = drop_differing_prompts(inputs, ours, theirs, file.name)
    tokenizer.save(str(file))
    return notes


def _write_encoder(
    encoder: nn.Module, example: Mapping[str, Tensor], file: Path, metadata: dict[str, Any]
) -> None:
    """Write one encoder, for any batch size."""
    batch, fastpath = torch.export.Dim("batch"), torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # fused attention, which ONNX does not have
    try:
        program = torch.onnx.export(
            encoder.eval(),
            kwargs=dict(example),
            input_names=list(example),
            output_names=[metadata[file.stem.partition("_")[0]]["output"]],
            dynamic_shapes={name: {0: batch} for name in example},
            dynamo=True,
            verbose=False,
        )
    finally:
        torch.backends.mha.set_fastpath_enabled(fastpath)
    assert program is not None
    for node in program.model.graph.all_nodes():  # the exporter records paths of source files
        node.metadata_props.clear()
        node.doc_string = None
    program.model.metadata_props["retouch"] = json.dumps(metadata)
    size = sum(p.numel() * p.element_size() for p in encoder.parameters())
    program.save(str(file), external_data=size > _SINGLE_FILE_LIMIT)


@torch.no_grad()
def _compare_with_torch(model: ExportModel, folder: Path, tokens: Mapping[str, Tensor]) -> float:
    """The largest difference between the sample's features by onnxruntime and by torch."""
    inputs = sample(model)
    pixels = {"pixel_values": model.clip.preprocess.normalize(inputs.pixels)}
    exported = run(folder / _IMAGE_FILE, pixels), run(folder / _TEXT_FILE, tokens)
    difference = max_difference(features(model.clip, inputs), exported)
    return refuse_difference(difference, TOLERANCE, "onnxruntime")


def run(file: Path, inputs: Mapping[str, Tensor]) -> Tensor:
    """Run one encoder with onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(file), options, ["CPUExecutionProvider"])
    (output,) = session.run(None, {name: value.numpy() for name, value in inputs.items()})
    return torch.from_numpy(np.asarray(output))


def _write_json(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value, indent=1, ensure_ascii=False), "utf-8")


def _check_installed() -> None:
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise UserError(f"{', '.join(missing)} not installed: pip install 'retouch[onnx]'")
