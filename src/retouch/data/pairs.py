"""Images with captions, the reference data of methods that preserve what a model knew."""

from dataclasses import dataclass
from pathlib import Path

from retouch.clip.preprocess import Preprocess, Uint8
from retouch.data.formats import coco, table
from retouch.data.formats.tar_shards import list_shards, scan_shards
from retouch.data.formats.text_files import read_json
from retouch.data.stores.file import FileStore
from retouch.data.stores.image_store import ImageStore, Indices
from retouch.data.stores.string_array import StringArray
from retouch.errors import UserError

_COCO_CAPTIONS = ("annotations/captions_val2017.json", "captions.json")


@dataclass
class Pairs:
    """Images, each with a caption."""

    name: str
    """The name of the data set in messages and reports."""
    captions: StringArray
    """One per image."""
    store: ImageStore
    """The images, not decoded yet."""

    def __len__(self) -> int:
        return len(self.captions)

    def read(self, indices: Indices, preprocess: Preprocess, out: Uint8 | None = None) -> Uint8:
        """Read images as the model takes them, [B, H, W, 3].

        Args:
            indices: Their positions.
            preprocess: The size and crop that the model wants.
            out: An array to read them into. Default: a new one.
        """
        return self.store.read(indices, preprocess, out)

    def texts(self, indices: Indices) -> list[str]:
        """The captions of some images.

        Args:
            indices: Their positions.
        """
        return [self.captions[int(i)] for i in indices]


def pairs_of(path: Path) -> Pairs:
    """The pairs in tar shards, a table or a folder with COCO's captions; none is decoded yet."""
    if table.matches(path):
        return _read_table(path)
    shards = [path] if path.suffix == ".tar" and path.is_file() else list_shards(path)
    if shards:
        store, texts = scan_shards(shards, "txt")
        return Pairs(str(path), StringArray(text.strip() for text in texts), store)
    for name in _COCO_CAPTIONS:
        if (path / name).is_file():
            return _read_coco(path, path / name)
    raise UserError(
        f"{path} has no images with captions; give tar shards of .jpg and .txt files, a .csv, .tsv "
        "or .jsonl file with paths and captions, or a folder with COCO's captions"
    )


def _read_table(file: Path) -> Pairs:
    names, captions = StringArray(), StringArray()
    for path, _, caption, _ in table.rows(file):
        if not caption:
            raise UserError(f"{file}: {path} has no caption; the file needs a column `caption`")
        names.append(path)
        captions.append(caption)
    return Pairs(str(file), captions, FileStore(file.parent, names))


def _read_coco(folder: Path, file: Path) -> Pairs:
    content, images = read_json(file), coco.image_folder(folder)
    with coco.explain_format_errors(file):
        files = {image["id"]: coco.file_name(image) for image in content["images"]}
        annotations = sorted(content["annotations"], key=lambda a: (a["image_id"], a["id"]))
        captions = StringArray(a["caption"].strip() for a in annotations)
        store = FileStore(images, [files[a["image_id"]] for a in annotations])
        return Pairs(str(folder), captions, store)
