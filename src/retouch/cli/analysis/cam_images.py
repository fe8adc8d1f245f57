"""The images of `retouch cam`, and the text to look for in each."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from retouch.errors import UserError

if TYPE_CHECKING:
    from retouch.cli.load_models import LoadedModel
    from retouch.clip.preprocess import Uint8
    from retouch.data.stores.image_store import ImageStore, UnreadableImage


@dataclass(frozen=True)
class CamImage:
    """An image, and its class if its folder or data set names one."""

    store: "ImageStore"
    index: int
    label: str | None = None

    @property
    def location(self) -> str:
        """Its path, with what cannot be encoded replaced, so that it can be written to a file."""
        return self.store.location(self.index).encode(errors="replace").decode()


def find_cam_images(names: Sequence[str]) -> list[CamImage]:
    """The images in the order given; a folder stands for all images in it."""
    from retouch.cli.images import images_below
    from retouch.data.loading.decode import EXTENSIONS
    from retouch.data.registry import packaged_source
    from retouch.data.stores.file import FileStore

    images: list[CamImage] = []
    for name in names:
        path = Path(name)
        if packaged_source(name):
            images += _images_of_source(name)
        elif not path.is_dir():
            images.append(CamImage(FileStore(Path(), [name]), 0))
        elif files := images_below(path):
            store = FileStore(path, files)
            labels = [Path(file).parent.name.replace("_", " ") or None for file in files]
            images += [CamImage(store, index, label) for index, label in enumerate(labels)]
        else:
            try:
                images += _images_of_source(name)
            except UserError:
                raise UserError(
                    f"{name} holds no image ({', '.join(EXTENSIONS)}); give another folder"
                ) from None
    return images


def _images_of_source(name: str) -> list[CamImage]:
    """Images in any form that `retouch learn` reads; of the packaged ones, a few per class."""
    from retouch.data.registry import packaged_source, read_data

    packaged = packaged_source(name)
    splits = packaged.read_few(name) if packaged else read_data(name)
    images = splits.evaluation_images()
    labels = [images.classes[label] for label in images.labels]
    return [CamImage(images.store, index, label) for index, label in enumerate(labels)]


def evenly_spread(images: list[CamImage], limit: int) -> list[CamImage]:
    """At most `limit` of the images, at equal distances."""
    if len(images) <= limit:
        return images
    return [images[int((number + 0.5) * len(images) / limit)] for number in range(limit)]


def read_cam_images(
    images: Sequence[CamImage], loaded: "LoadedModel"
) -> "tuple[list[tuple[CamImage, Uint8]], list[UnreadableImage]]":
    """Each image as the model sees it, and those that cannot be read."""
    import numpy as np

    readable, unreadable = [], []
    for image in images:
        pixels, problems = image.store.try_read(np.array([image.index]), loaded.preprocess)
        unreadable += problems
        if not problems:
            readable.append((image, pixels[0]))
    if not readable:
        raise UserError(f"{unreadable[0]}; give an image that can be read")
    return readable, unreadable


def texts_to_find(images: Sequence[CamImage], text: str | None, loaded: "LoadedModel") -> list[str]:
    """A prompt per image: the text given, the image's class, or the class the run predicts."""
    if text is not None:
        return [text.encode(errors="replace").decode()] * len(images)
    names = [image.label or _predicted_class(image, loaded) for image in images]
    return [_prompt(name, loaded).encode(errors="replace").decode() for name in names]


def _prompt(name: str, loaded: "LoadedModel") -> str:
    """The first prompt of a class: the run's own, if it knows the class."""
    from retouch.clip.text.zero_shot import fill_template
    from retouch.data.images import DEFAULT_TEMPLATE

    run = loaded.run
    known = map(run.choices.prompted, run.choices.seen(0)) if run else ()
    if own := next((each for each in known if each.name == name), None):
        return own.prompts[0]
    template = run.config["data"]["templates"][0] if run else DEFAULT_TEMPLATE
    return fill_template(template, [name])[0]


def _predicted_class(image: CamImage, loaded: "LoadedModel") -> str:
    """The run's prediction, among the classes that it had learned by then."""
    import numpy as np

    from retouch.data.stores.composite import SubsetStore
    from retouch.evaluate.predict import classify_images

    if loaded.run is None or not loaded.tasks:
        raise UserError(
            f"no text says what to look for in {image.location}; give one with --text, or give the "
            "folder that holds the class folders"
        )
    store = SubsetStore(image.store, np.array([image.index]))
    predictions, _ = classify_images(
        loaded.now(), store, loaded.run.choices, learned=loaded.tasks, top=1
    )
    return predictions[0][0].name
