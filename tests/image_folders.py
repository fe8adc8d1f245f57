"""Images as files: one subfolder per class."""

from pathlib import Path

from retouch.data import Images


def to_folder(pictures: Images, folder: Path) -> Path:
    """Write images into one subfolder per class."""
    for number, label in enumerate(pictures.labels):
        subfolder = folder / pictures.classes[label].replace(" ", "_")
        subfolder.mkdir(parents=True, exist_ok=True)
        pictures.store.image(number).save(subfolder / f"{number}.png")
    return folder
