"""Pictures whose objects are known: COCO's own files, or anyone's in the same form."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from retouch.data.file_store import FileStore
from retouch.data.image_store import ImageStore
from retouch.data.text_files import read_json
from retouch.errors import UserError

Box = tuple[float, float, float, float]
"""Left, top, width and height in the picture's own pixels."""
SLACK = 1.0
"""So many pixels a box may reach over the edge: boxes are rounded."""


@dataclass(frozen=True)
class Scene:
    """A picture, and where in it which objects are."""

    key: str
    """What tells it apart from the others."""
    size: tuple[int, int]
    """Width and height."""
    boxes: Mapping[str, tuple[Box, ...]]
    """By the name of the class. There may be none."""


@dataclass(frozen=True)
class AnnotatedImages:
    """Scenes, and the picture of each."""

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

    def stamp(self) -> str:
        """Changes when a picture is added, or an object, or a box is moved."""
        told = [(s.key, s.size, sorted(s.boxes.items())) for s in self.scenes]
        return hashlib.blake2b(json.dumps(told).encode(), digest_size=16).hexdigest()


def read_annotations(source: str | Path) -> AnnotatedImages:
    """The objects of COCO, or of other data in its form.

    `source` is the folder that holds `instances*.json`, itself or in `annotations`, and the images,
    in folders called as in the official download or all in `images`; or that one file.
    """
    file, folder = _find(Path(source))
    told = _read(file)
    try:
        scenes, names = _scenes(file, told)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as why:
        if isinstance(why, UserError):
            raise
        lacking = f"{type(why).__name__}: {why}"
        raise UserError(
            f"{file} is not in COCO's form ({lacking}): it needs images (id, file_name, width, "
            "height), annotations (image_id, category_id, bbox) and categories (id, name)"
        ) from None
    return AnnotatedImages(str(source), scenes, FileStore(_images(file, folder, names), names))


def _find(source: Path) -> tuple[Path, Path]:
    """The file of annotations, and the folder that belongs to it."""
    if source.is_file():
        inner = source.parent
        return source, inner.parent if inner.name == "annotations" else inner
    found = sorted([*source.glob("annotations/instances*.json"), *source.glob("instances*.json")])
    official = [file for file in found if "val" in file.stem]
    if len(found) > 1 and len(official) != 1:
        raise UserError(
            f"{source} has several files of annotations ({', '.join(f.name for f in found)}); "
            "name the one you mean instead of the folder"
        )
    if not found:
        raise UserError(
            f"{source} has no instances*.json, neither there nor in annotations/; give the folder "
            "of COCO (https://cocodataset.org/#download), or data in its form"
        )
    return (official or found)[0], source


def _read(file: Path) -> dict[str, Any]:
    found = read_json(file)
    return dict(found) if isinstance(found, dict) else {}


def _scenes(file: Path, told: Mapping[str, Any]) -> tuple[list[Scene], list[str]]:
    """All pictures in the file's order; crowds are no objects."""
    classes = {category["id"]: str(category["name"]) for category in told["categories"]}
    images = {image["id"]: image for image in told["images"]}
    boxes: dict[Any, dict[str, tuple[Box, ...]]] = {key: {} for key in images}
    for note in told["annotations"]:
        what = f"{file}: the annotation {note.get('id', '(without id)')}"
        if note["category_id"] not in classes:
            raise UserError(
                f"{what} has the class {note['category_id']}, which is not among the "
                f"{len(classes)} categories of the file; add it there, or drop the annotation"
            )
        if note["image_id"] not in images:
            raise UserError(
                f"{what} is of image {note['image_id']}, which the file does not list; add it to "
                "images, or drop the annotation"
            )
        if note.get("iscrowd"):
            continue
        box = _box(what, note["bbox"], images[note["image_id"]])
        mine, name = boxes[note["image_id"]], classes[note["category_id"]]
        mine[name] = (*mine.get(name, ()), box)
    scenes = [
        Scene(str(key), (int(image["width"]), int(image["height"])), boxes[key])
        for key, image in images.items()
    ]
    return scenes, [str(image["file_name"]) for image in images.values()]


def _box(what: str, told: Any, image: Mapping[str, Any]) -> Box:
    left, top, wide, high = map(float, told)
    inside = left >= -SLACK and top >= -SLACK
    inside = inside and left + wide <= image["width"] + SLACK
    inside = inside and top + high <= image["height"] + SLACK
    if not inside or not all(map(isfinite, (left, top, wide, high))) or min(wide, high) < 0:
        raise UserError(
            f"{what} has the box {list(told)} (left, top, width, height), outside its image "
            f"{image['file_name']} of {image['width']}×{image['height']} pixels; mend the box, or "
            "take annotations that belong to these images"
        )
    return left, top, wide, high


def _images(file: Path, folder: Path, names: list[str]) -> Path:
    """Where the images lie: `val2017` belongs to `instances_val2017.json`."""
    part = file.stem.removeprefix("instances").strip("_")
    places = [*([part, f"images/{part}"] if part else []), "images", "val2017", "."]
    for place in places:
        if names and (folder / place / names[0]).is_file():
            return folder / place
    first = f"{names[0]} is in none of" if names else f"{file} lists no images for"
    raise UserError(
        f"{first} {', '.join(str(folder / place) for place in places)}; unpack the images beside "
        f"{file.name}"
    )
