"""Images with annotated objects: COCO's files, or anyone's in the same format."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from retouch.data.formats.text_files import read_json
from retouch.data.stores.file import FileStore
from retouch.data.stores.image_store import ImageStore
from retouch.errors import UserError

Box = tuple[float, float, float, float]
"""Left, top, width and height in pixels of the original image."""
TOLERANCE = 1.0
"""How many pixels a box may extend beyond the image: boxes are rounded."""


@dataclass(frozen=True)
class Scene:
    """The annotations of one image."""

    key: str
    """Identifies the image."""
    size: tuple[int, int]
    """Width and height."""
    boxes: Mapping[str, tuple[Box, ...]]
    """By class name; may be empty."""


@dataclass(frozen=True)
class AnnotatedImages:
    """Images and the annotations of each."""

    name: str
    scenes: list[Scene]
    pictures: ImageStore

    def __post_init__(self) -> None:
        if len(self.pictures) != len(self.scenes):
            raise UserError(
                f"{self.name}: {len(self.pictures)} pictures, {len(self.scenes)} scenes"
            )

    def __len__(self) -> int:
        return len(self.scenes)

    def digest(self) -> str:
        """Changes when an image or a box is added, removed or moved."""
        content = [(s.key, s.size, sorted(s.boxes.items())) for s in self.scenes]
        return hashlib.blake2b(json.dumps(content).encode(), digest_size=16).hexdigest()


def read_annotations(source: str | Path) -> AnnotatedImages:
    """The annotations of COCO, or of other data in its format.

    `source` is the folder that holds `instances*.json`, directly or in `annotations`, and the
    images, in folders named as in the official download or all in `images`; or that one file.
    """
    file, folder = _annotation_file(Path(source))
    content = read_json(file)
    try:
        scenes, names = _parse(file, dict(content) if isinstance(content, dict) else {})
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"{file} is not in COCO's format ({type(error).__name__}: {error}): it needs images "
            "(id, file_name, width, height), annotations (image_id, category_id, bbox) and "
            "categories (id, name)"
        ) from None
    return AnnotatedImages(
        str(source), scenes, FileStore(_image_folder(file, folder, names), names)
    )


def _annotation_file(source: Path) -> tuple[Path, Path]:
    """The file of annotations, and the folder it belongs to."""
    if source.is_file():
        parent = source.parent
        return source, parent.parent if parent.name == "annotations" else parent
    files = sorted([*source.glob("annotations/instances*.json"), *source.glob("instances*.json")])
    validation = [file for file in files if "val" in file.stem]
    if len(files) > 1 and len(validation) != 1:
        raise UserError(
            f"{source} has several annotation files ({', '.join(f.name for f in files)}); "
            "name the one you mean instead of the folder"
        )
    if not files:
        raise UserError(
            f"{source} has no instances*.json, neither there nor in annotations/; give the folder "
            "of COCO (https://cocodataset.org/#download), or data in its format"
        )
    return (validation or files)[0], source


def _parse(file: Path, content: Mapping[str, Any]) -> tuple[list[Scene], list[str]]:
    """The scenes and file names of all images in the file's order; crowds are not objects."""
    classes = {category["id"]: str(category["name"]) for category in content["categories"]}
    images = {image["id"]: image for image in content["images"]}
    boxes: dict[Any, dict[str, tuple[Box, ...]]] = {key: {} for key in images}
    for annotation in content["annotations"]:
        what = f"{file}: the annotation {annotation.get('id', '(without id)')}"
        if annotation["category_id"] not in classes:
            raise UserError(
                f"{what} has the class {annotation['category_id']}, which is not among the "
                f"{len(classes)} categories of the file; add it there, or remove the annotation"
            )
        if annotation["image_id"] not in images:
            raise UserError(
                f"{what} is for image {annotation['image_id']}, which the file does not list; add "
                "it to images, or remove the annotation"
            )
        if annotation.get("iscrowd"):
            continue
        box = _check_box(what, annotation["bbox"], images[annotation["image_id"]])
        image_boxes, name = boxes[annotation["image_id"]], classes[annotation["category_id"]]
        image_boxes[name] = (*image_boxes.get(name, ()), box)
    scenes = [
        Scene(str(key), (int(image["width"]), int(image["height"])), boxes[key])
        for key, image in images.items()
    ]
    return scenes, [str(image["file_name"]) for image in images.values()]


def _check_box(what: str, bbox: Any, image: Mapping[str, Any]) -> Box:
    left, top, width, height = map(float, bbox)
    inside = left >= -TOLERANCE and top >= -TOLERANCE
    inside = inside and left + width <= image["width"] + TOLERANCE
    inside = inside and top + height <= image["height"] + TOLERANCE
    if not inside or not all(map(isfinite, (left, top, width, height))) or min(width, height) < 0:
        raise UserError(
            f"{what} has the box {list(bbox)} (left, top, width, height), outside its image "
            f"{image['file_name']} of {image['width']}×{image['height']} pixels; correct the box, "
            "or use annotations that belong to these images"
        )
    return left, top, width, height


def _image_folder(file: Path, folder: Path, names: list[str]) -> Path:
    """The folder of the images: `val2017` for `instances_val2017.json`."""
    split = file.stem.removeprefix("instances").strip("_")
    candidates = [*([split, f"images/{split}"] if split else []), "images", "val2017", "."]
    for candidate in candidates:
        if names and (folder / candidate / names[0]).is_file():
            return folder / candidate
    problem = f"{names[0]} is in none of" if names else f"{file} lists no images for"
    raise UserError(
        f"{problem} {', '.join(str(folder / candidate) for candidate in candidates)}; unpack the "
        f"images beside {file.name}"
    )
