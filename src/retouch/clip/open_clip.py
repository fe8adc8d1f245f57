"""CLIPs of the open_clip library, an extra: `pip install retouch[open-clip]`."""

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import pad

from retouch.clip.fast.compile import padded_length
from retouch.clip.model import Clip, Tokens, savable
from retouch.clip.preprocess import Preprocess
from retouch.clip.prompt_file import saving
from retouch.clip.safe_loading import NO_CODE, no_code
from retouch.clip.torchvision_compat import patch_torchvision
from retouch.errors import UserError, message_of
from retouch.files import DISK_FULL_ERRORS

log = logging.getLogger("retouch")

CONFIG, WEIGHTS = "open_clip_config.json", "open_clip_model.safetensors"

_PROJECTIONS = {
    "visual.proj": "image",
    "visual.head.proj.weight": "image",
    "text_projection": "text",
    "text.text_projection": "text",
    "text_projection.weight": "text",
    "text.text_projection.weight": "text",
}


class OpenClip(Clip):
    """A model of open_clip's, with its tokenizer."""

    image_prefix = "visual."

    def __init__(self, model: Any, tokenizer: Any, name: str = "open_clip") -> None:
        self.model = self._own = model.eval()
        self.tokenizer = tokenizer
        self.name = name
        self.preprocess = _read_pixels(model.visual.preprocess_cfg)
        names = dict(model.named_parameters())
        self.projections = {tower: name for name, tower in _PROJECTIONS.items() if name in names}
        self._prefix = "text." if hasattr(model, "text") else ""
        self._text = getattr(model, "text", model)
        self._pool = getattr(self._text, "text_pool_type", getattr(self._text, "pool_type", None))

    def encode_images(self, pixels: Tensor) -> Tensor:
        features: Tensor = self._own.encode_image(pixels)
        return features

    def encode_texts(self, tokens: Tokens) -> Tensor:
        text = tokens["text"]
        if not self._causal:
            whole: Tensor = self._own.encode_text(text)
            return whole
        # The library takes prompts of full length alone; lend it a shorter table of positions and
        # a smaller mask for this call.
        length = text.shape[1]
        shorter = {
            f"{self._prefix}positional_embedding": self._text.positional_embedding[:length],
            f"{self._prefix}attn_mask": self._text.attn_mask[:length, :length],
        }
        out = functional_call(self.model, shorter, kwargs={"text": text})
        features: Tensor = out["text_features"] if isinstance(out, dict) else out[1]
        return features

    def _tokenize(self, prompts: Sequence[str]) -> Tokens:
        text: Tensor = self.tokenizer(list(prompts))
        inside = getattr(self.tokenizer, "tokenizer", None)  # where it is one of transformers'
        filling = getattr(inside, "pad_token_id", None) or 0
        if (text[:, -2] != filling).any():  # the last is an end, wherever it was cut
            self._warn_of_cut(prompts, inside, text.shape[1])
        if not self._causal:
            return {"text": text}
        return {"text": text[:, : int(self._end(text).max()) + 1]}

    def _warn_of_cut(self, prompts: Sequence[str], inside: Any, full: int) -> None:
        """Where the tokenizer tells how many tokens a whole prompt would take."""
        if inside is not None:
            clean = getattr(self.tokenizer, "clean_fn", str)
            whole = inside([clean(prompt) for prompt in prompts], verbose=False)["input_ids"]
            self.truncated_prompts.add(prompts, [len(ids) for ids in whole], full)
        elif hasattr(self.tokenizer, "encode"):
            lengths = [len(self.tokenizer.encode(p)) + 2 for p in prompts]
            self.truncated_prompts.add(prompts, lengths, full)

    def lengths(self, tokens: Tokens) -> Tensor | None:
        return self._end(tokens["text"]) + 1 if self._causal else None

    def pad_tokens(self, tokens: Tokens) -> Tokens:
        text = tokens["text"]
        if not self._causal:
            return tokens
        longer = padded_length(text.shape[1], len(self._text.positional_embedding))
        return {"text": pad(text, (0, longer - text.shape[1]))}

    @property
    def logit_scale(self) -> Tensor:
        scale: Tensor = self._own.logit_scale
        return scale.exp()

    def save(self, folder: str | Path) -> None:
        from safetensors.torch import save_file

        Path(folder).mkdir(parents=True, exist_ok=True)
        with saving(self.model, folder):
            save_file(savable(self.model), Path(folder) / "open_clip_model.safetensors")

    @property
    def _causal(self) -> bool:
        """Whether what stands behind the end of a prompt has no effect on its feature."""
        mask, pool = getattr(self._text, "attn_mask", None), self._pool
        plain = getattr(self._text, "cls_emb", None) is None
        return mask is not None and plain and pool in ("argmax", "eos")

    def _end(self, text: Tensor) -> Tensor:
        """The position of each prompt's last token, the one that its feature is read from."""
        if self._pool == "argmax":
            return text.argmax(dim=-1)
        end: Any = getattr(self._text, "text_eos_id", getattr(self._text, "eos_id", None))
        return text.eq(end).int().argmax(dim=-1)


def load_open_clip(spec: str, *, random_weights: bool = False) -> OpenClip:
    """Load `NAME/TAG` (the library's pretrained weights) or `NAME@FILE` (a safetensors file)."""
    library = _library()
    name, _, file = spec.partition("@")
    name, _, tag = name.partition("/")
    if name not in library.list_models():
        raise UserError(
            f"open_clip has no model {name!r}; it has {', '.join(_similar(name, library))} … "
            "(python -c 'import open_clip; print(open_clip.list_models())' lists all)"
        )
    if random_weights:
        log.warning("open_clip:%s: random weights, as asked for; it knows nothing yet", name)
        weights = None
    elif file:
        weights = _check_file(library, name, Path(file))
    elif tag:
        weights = _download(library, name, tag)
    else:
        raise UserError(
            f"open_clip:{name} names no weights. Say open_clip:{name}/TAG "
            f"({', '.join(library.list_pretrained_tags_by_model(name)) or 'no tags known'}) or "
            f"open_clip:{name}@FILE.safetensors, or ask for random weights"
        )
    return _build(library, name, weights, f"open_clip:{spec}")


def is_open_clip_folder(folder: Path) -> bool:
    """Whether a folder is as open_clip's hub has them, and as `retouch export` writes them."""
    return (folder / CONFIG).is_file() and not (folder / "config.json").is_file()


def load_open_clip_folder(folder: Path) -> OpenClip:
    """Load a folder with a config, safetensors, and the tokenizer's files if it has its own."""
    library, weights = _library(), folder / WEIGHTS
    if not weights.is_file():
        raise UserError(f"{folder} has {CONFIG}, but no {WEIGHTS}; take a complete folder")
    return _build(library, f"local-dir:{folder.resolve()}", weights, str(folder))


def _build(library: Any, name: str, weights: Path | None, source: str) -> OpenClip:
    """The model with its tokenizer; without weights, all of it is random."""
    own = name.startswith("local-dir:")  # which finds its weights by itself
    file = str(weights) if weights and not own else None
    with _explained(name, source, weights), no_code(source):
        model = library.create_model(name, pretrained=file, pretrained_text=False)
        return OpenClip(model, library.get_tokenizer(name), source)


@contextmanager
def _explained(name: str, source: str, weights: Path | None) -> Iterator[None]:
    """The library's errors as ours; it warns on the root logger of what is raised here."""
    level = logging.root.level
    logging.root.setLevel(logging.ERROR)
    try:
        yield
    except UserError:
        raise
    except Exception as why:  # a damaged file can fail anywhere in the library
        if isinstance(why, OSError) and why.errno in DISK_FULL_ERRORS:
            raise
        if "trust_remote_code" in str(why):
            raise UserError(f"{source} cannot be loaded: {NO_CODE}") from why
        reason = message_of(why)
        if not name.startswith("local-dir:"):
            raise UserError(
                f"the weights in {weights} do not fit open_clip's {name}: {reason}. Nothing was "
                "filled in at random; take a checkpoint of this very model"
            ) from why
        raise UserError(
            f"{source} could not be loaded: {reason}. {CONFIG}, {WEIGHTS} and the tokenizer's "
            "files must be whole and belong together; nothing was filled in at random"
        ) from why
    finally:
        logging.root.setLevel(level)


def _check_file(library: Any, name: str, file: Path) -> Path:
    if not file.is_file():
        raise UserError(f"{file} does not exist; give the path of a safetensors file")
    _refuse_pickle(file)
    beside = file.with_name(CONFIG)
    if beside.is_file():
        wants = _wants_quick_gelu(beside)
    else:
        wants = "openai" in file.name.lower() or _has_quick_gelu(library, name)
    _check_activation(library, name, wants, str(file))
    return file


def _wants_quick_gelu(config: Path) -> bool:
    try:
        return bool(json.loads(config.read_text("utf-8"))["model_cfg"].get("quick_gelu", False))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as why:
        raise UserError(
            f"{config}, which lies beside the weights, is broken ({message_of(why)}); "
            "take another copy of it, or move the weights to a folder of their own"
        ) from None


def _download(library: Any, name: str, tag: str) -> Path:
    settings = library.get_pretrained_cfg(name, tag)
    if not settings:
        tags = ", ".join(library.list_pretrained_tags_by_model(name)) or "none"
        raise UserError(f"open_clip has no weights {tag!r} for {name}; it has: {tags}")
    _check_activation(library, name, bool(settings.get("quick_gelu", False)), f"{name}/{tag}")
    try:
        file = Path(library.download_pretrained(settings))
    except Exception as why:  # no connection has many names
        raise UserError(
            f"the weights {name}/{tag} could not be fetched ({type(why).__name__}). Go online, or "
            f"download them and say open_clip:{name}@FILE.safetensors"
        ) from None
    _refuse_pickle(file)
    return file


def _check_activation(library: Any, name: str, wants: bool, weights: str) -> None:
    """Weights trained with QuickGELU run with GELU too, and lose points without a word."""
    has = _has_quick_gelu(library, name)
    if has != wants:
        plain = name.removesuffix("-quickgelu")
        other = f"{plain}-quickgelu" if wants else plain
        raise UserError(
            f"QuickGELU mismatch: the weights {weights} were trained "
            f"{'with' if wants else 'without'} it, the model {name} is built "
            f"{'with' if has else 'without'} it; say open_clip:{other} instead"
        )


def _has_quick_gelu(library: Any, name: str) -> bool:
    return bool(library.get_model_config(name).get("quick_gelu", False))


def _refuse_pickle(file: Path) -> None:
    if file.suffix != ".safetensors":
        raise UserError(
            f"{file.name} is not a safetensors file, and other checkpoints can run code when read. "
            "If you trust it, convert it once: safetensors.torch.save_file("
            "torch.load(FILE, weights_only=True), 'model.safetensors')"
        )


def _read_pixels(settings: dict[str, Any]) -> Preprocess:
    size = settings["size"]
    height, width = (size, size) if isinstance(size, int) else size
    mode = settings.get("resize_mode", "shortest")
    if mode not in ("shortest", "squash") or (mode == "shortest" and height != width):
        raise UserError(
            f"open_clip prepares this model's pictures with resize_mode={mode!r} to "
            f"{height}×{width}, which retouch does not do yet; take a model with square pictures"
        )
    bilinear = settings.get("interpolation") == "bilinear"
    return Preprocess(
        size=(height, width),
        shortest=height if mode == "shortest" else None,
        mean=tuple(settings["mean"]),
        std=tuple(settings["std"]),
        resample=Image.Resampling.BILINEAR if bilinear else Image.Resampling.BICUBIC,
        odd_pixel="round",
    )


def _similar(name: str, library: Any) -> list[str]:
    from difflib import get_close_matches

    return get_close_matches(name, library.list_models(), 5, 0.3)


def _library() -> Any:
    patch_torchvision()
    try:
        import open_clip
    except ImportError as why:
        raise UserError(f"no open_clip ({why}): pip install 'retouch[open-clip]'") from None
    return open_clip
