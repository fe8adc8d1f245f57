"""Compute the lower visual blocks that a run never changes once for every image."""

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from retouch.clip.activation_store import ActivationStore
from retouch.clip.frozen_blocks import FrozenBlocks, Tower
from retouch.clip.model import Clip
from retouch.clip.towers import Towers

log = logging.getLogger("retouch")


@contextmanager
def reuse_frozen(
    clip: Clip,
    trained: Collection[str] | None,
    folder: Path | None = None,
    *,
    neurons: bool = False,
) -> Iterator[None]:
    """Inside this context, blocks below the lowest one that is trained run once per image.

    Features are the same; what a batch of images by key (`KeyedImages`) needs below is kept and
    found again. Nothing changes for a tower that cannot be run in two parts, or a `Clip` that
    encodes images in its own way.

    Args:
        clip: The model.
        trained: The names of the parameters that may change. None: any.
        folder: Where activations may lie on disk when memory does not suffice. None: nowhere.
        neurons: Reuse what frozen neurons of the lowest trained block give, too, where whole
            neurons are trained on a processor. Features then differ by rounding.
    """
    store, neuron_store = ActivationStore(folder), ActivationStore(folder)
    if trained is not None and type(clip).image_features is Towers.image_features:
        projection = clip.projections.get("image")
        head = () if projection is None else (projection,)
        tower = Tower(clip.model, clip.image_prefix, clip.blocks["image"], head)
        frozen = FrozenBlocks(tower, trained, clip.preprocess.size, store)
        with clip.precision():
            if frozen.works(clip.encode_images):
                clip.frozen = frozen
                if neurons:
                    frozen.reuse_neurons(neuron_store)
            elif frozen.first:
                log.debug("the visual tower of %s runs as a whole", clip.name)
    try:
        yield
    finally:
        clip.frozen = None
        store.close()
        neuron_store.close()


def release_if_trained(clip: Clip, names: Collection[str]) -> None:
    """Run the whole tower from now on, if parameters are trained that were to stay as they are."""
    if clip.frozen is not None and not clip.frozen.trained.issuperset(names):
        clip.frozen.close()
        clip.frozen = None
