"""Safetensors files with a checksum of their header and of their tensors.

Deltas, checkpoints, the state of a method and prompts are such files. The header is one JSON
object, so it can be read without the tensors. A file that was cut off, edited or damaged on its way
is refused when it is read.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import safetensors
from safetensors.torch import save
from torch import Tensor

from retouch.errors import UserError
from retouch.files.checksummed import Document, from_metadata, refusal, to_metadata
from retouch.sparse.fingerprints import digest


class SealedHeader(Document):
    """The header of such a file."""

    content: str = ""
    """Digest of the tensors; `sealed_bytes` fills it in."""


H = TypeVar("H", bound=SealedHeader)


@dataclass(frozen=True)
class SealedFile(Generic[H]):
    """An open file, of which only the header has been read."""

    header: H
    _file: Any

    @property
    def names(self) -> list[str]:
        """The names of the tensors."""
        return list(self._file.keys())

    def tensors(self) -> dict[str, Tensor]:
        """All tensors. Raises ValueError if they do not match the header's digest."""
        tensors = {name: self._file.get_tensor(name) for name in self.names}
        if digest(tensors) != self.header.content:
            raise ValueError("its content does not match its checksum")
        return tensors


def sealed_bytes(header: SealedHeader, tensors: Mapping[str, Tensor]) -> bytes:
    """The content of the file. The tensors must be contiguous and share no memory."""
    header = header.model_copy(update={"content": digest(tensors)})
    content: bytes = save(dict(tensors), to_metadata(header.model_dump()))
    return content


@contextmanager
def open_sealed(
    path: str | Path, schema: type[H], kind: str, remedy: str, name: str = ""
) -> Iterator[SealedFile[H]]:
    """Open a file that `sealed_bytes` made.

    Whatever is wrong with it becomes a UserError that names it; so does a ValueError that is raised
    in the body of the `with` statement.

    Args:
        path: The file.
        schema: What its header may hold.
        kind: What the file should be, such as "a delta".
        remedy: Tells the user what to do if it is not.
        name: How the message names the file, if not by its path.
    """
    name = name or str(path)
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            metadata = file.metadata()
            if "retouch" not in (metadata or {}):
                raise UserError(
                    f"{name} is a safetensors file, but not {kind} written by retouch; {remedy}"
                )
            yield SealedFile(from_metadata(metadata, schema), file)
    except UserError:
        raise
    except (safetensors.SafetensorError, ValueError) as why:
        raise refusal(name, why, remedy) from None
    except OSError as why:
        raise UserError(f"{name} cannot be read ({why}); {remedy}") from None
