"""Compute lower blocks that a run never changes once per image and once per prompt."""

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from retouch.clip.frozen.activation_store import ActivationStore
from retouch.clip.frozen.blocks import FrozenBlocks
from retouch.clip.frozen.split_tower import Tower
from retouch.clip.frozen.texts import FrozenTexts
from retouch.clip.model import Clip
from retouch.clip.towers import Towers

log = logging.getLogger("retouch")


@contextmanager
def reuse_frozen(
    clip: Clip,
    trained: Collection[str] | None,
    folder: Path | None = None,
    *,
    trained_texts: Collection[str] | None = None,
) -> Iterator[None]:
    """Inside this context, blocks below the lowest one that is trained run once per image.

    Features are the same. The activations of images with a key (`KeyedImages`) are kept, and so are
    those of prompts that every evaluation encodes. Nothing changes for a tower that cannot be run
    in two parts, or a `Clip` that encodes in its own way.

    Args:
        clip: The model.
        trained: The names of the parameters that may change. None: any.
        folder: Where activations are written when memory runs out. None: they are not.
        trained_texts: As `trained`, for the text tower.
    """
    store = ActivationStore(folder)
    with clip.precision():
        if trained is not None and type(clip).image_features is Towers.image_features:
            clip.frozen = _frozen_images(clip, trained, store)
        if trained_texts is not None and type(clip).text_features is Towers.text_features:
            clip.frozen_texts = _frozen_texts(clip, trained_texts)
    try:
        yield
    finally:
        clip.frozen = clip.frozen_texts = None
        store.close()


def _frozen_images(
    clip: Clip, trained: Collection[str], store: ActivationStore
) -> FrozenBlocks | None:
    def is_image(name: str) -> bool:
        return name.startswith(clip.image_prefix)

    projection = clip.projections.get("image")
    head = () if projection is None else (projection,)
    tower = Tower(clip.model, is_image, clip.blocks["image"], head)
    frozen = FrozenBlocks(tower, trained, clip.preprocess.size, store)
    if frozen.works(clip.encode_images):
        return frozen
    if frozen.first:
        log.debug("the visual tower of %s runs as a whole", clip.name)
    return None


def _frozen_texts(clip: Clip, trained: Collection[str]) -> FrozenTexts | None:
    def is_text(name: str) -> bool:
        return not name.startswith(clip.image_prefix)

    head = {*clip.projections.values(), "logit_scale", "logit_bias"}
    frozen = FrozenTexts(Tower(clip.model, is_text, clip.blocks["text"], head), trained)
    if not frozen.first:
        return None
    tokens = clip.tokenize(["one", "a photo"])
    tokens = {name: ids.to(clip.device) for name, ids in tokens.items()}
    return frozen if frozen.splits(clip.encode_texts, tokens, tokens) else None


def release_if_trained(clip: Clip, names: Collection[str]) -> None:
    """Run the whole tower from now on, if parameters are trained that should have stayed frozen."""
    if clip.frozen is not None and not clip.frozen.trained.issuperset(names):
        clip.frozen.close()
        clip.frozen = None
    if clip.frozen_texts is not None and not clip.frozen_texts.trained.issuperset(names):
        clip.frozen_texts = None
