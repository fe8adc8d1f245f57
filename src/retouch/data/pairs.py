"""Images with captions, for methods that hold on to what a model knew by such pairs."""

from dataclasses import dataclass
from pathlib import Path

from retouch.clip.preprocess import Preprocess, Uint8
from retouch.data.image_store import FileStore, ImageStore, Indices
from retouch.data.sources import coco, table, webdataset
from retouch.data.string_array import StringArray
from retouch.data.text_files import read_json
from retouch.errors import UserError


@dataclass
class Pairs:
    """Pictures with a caption each."""

    name: str
    """The name of the data set in messages and reports."""
    captions: StringArray
    """One per picture."""
    store: ImageStore
    """The pictures, not decoded yet."""

    def __len__(self) -> int:
        return len(self.captions)

    def read(self, indices: Indices, pixels: Preprocess, out: Uint8 | None = None) -> Uint8:
        """Read pictures as the model takes them, [B, H, W, 3].

        Args:
            indices: Their positions.
            pixels: The size and crop that the model wants.
            out: An array to read them into. Default: a new one.
        """
        return self.store.read(indices, pixels, out)

    def texts(self, indices: Indices) -> list[str]:
        """The captions of some pictures.

        Args:
            indices: Their positions.
        """
        return [self.captions[int(i)] for i in indices]


def read_pairs(source: str | Path) -> Pairs:
    """Read images with captions.

    Args:
        source: Tar shards as img2dataset writes them (CC12M and others), a table with captions, or
            a folder of COCO.
    """
    path = Path(source)
    if table.recognises(path):
        return _from_table(path)
    shards = [path] if path.suffix == ".tar" and path.is_file() else webdataset.shards_of(path)
    if shards:
        pictures, texts = webdataset.scan(shards, "txt")
        return Pairs(str(path), StringArray(text.strip() for text in texts), pictures)
    for name in ("annotations/captions_val2017.json", "captions.json"):
        if (path / name).is_file():
            return _from_coco(path, path / name)
    raise UserError(
        f"{path} holds no images with captions: neither tar shards of .jpg and .txt, nor a .csv, "
        ".tsv or .jsonl of path and caption, nor COCO's captions"
    )


def _from_table(file: Path) -> Pairs:
    names, captions = StringArray(), StringArray()
    for path, _, caption, _ in table.rows(file):
        if not caption:
            raise UserError(f"{file}: {path} has no caption; the file needs a column `caption`")
        names.append(path)
        captions.append(caption)
    return Pairs(str(file), captions, FileStore(file.parent, names))


def _from_coco(folder: Path, file: Path) -> Pairs:
    found, images = read_json(file), coco.images_of(folder)
    with coco.well_formed(file):
        files = {image["id"]: coco.file_name(image) for image in found["images"]}
        said = sorted(found["annotations"], key=lambda a: (a["image_id"], a["id"]))
        pictures = FileStore(images, [files[a["image_id"]] for a in said])
        return Pairs(str(folder), StringArray(a["caption"].strip() for a in said), pictures)
