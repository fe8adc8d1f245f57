"""The effects of traced pairs on disk, so that an interrupted trace continues where it stopped."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from retouch.analysis.layer_names import TowerName
from retouch.analysis.trace.effects import PairEffects
from retouch.errors import UserError
from retouch.files import checksummed
from retouch.files.checksummed import Document
from retouch.files.write import write_atomically

SETTINGS, PAIRS = "settings.json", "pairs.jsonl"


class TraceHeader(Document):
    """The content of `settings.json`."""

    settings: dict[str, Any]
    """All that effects depend on."""
    embedding_std: dict[TowerName, Annotated[float, Field(ge=0)]]
    """The standard deviation of each tower's embeddings."""


class Journal:
    """The effects that are known so far; with a folder, they are stored there."""

    def __init__(self, folder: Path | None, settings: Mapping[str, Any]) -> None:
        self._pairs_file = folder / PAIRS if folder else None
        self._settings_file = folder / SETTINGS if folder else None
        self._settings = dict(settings)
        self._effects: dict[tuple[str, str], dict[TowerName, PairEffects]] = {}
        self.embedding_std: dict[TowerName, float] = {}
        """The standard deviation of each tower's embeddings; measured once."""
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
            self._reopen()

    def start(self, embedding_std: Mapping[TowerName, float]) -> None:
        """Begin a new trace with these standard deviations of the embeddings."""
        self.embedding_std = dict(embedding_std)
        if self._settings_file:
            header = TraceHeader(settings=self._settings, embedding_std=self.embedding_std)
            checksummed.write_json(self._settings_file, header.model_dump())

    def get(self, image: str, name: str) -> list[PairEffects] | None:
        """The effects of a pair in every tower, if they are known."""
        effects = self._effects.get((image, name), {})
        return list(effects.values()) if effects.keys() == self.embedding_std.keys() else None

    def add(self, effects: Sequence[PairEffects]) -> None:
        """Store the effects of a pair, on disk at once."""
        self._remember(effects)
        if self._pairs_file:
            with self._pairs_file.open("ab") as file:
                file.writelines(
                    checksummed.to_line(effect.model_dump(mode="json")) for effect in effects
                )
                file.flush()
                os.fsync(file.fileno())

    def _remember(self, effects: Sequence[PairEffects]) -> None:
        for effect in effects:
            self._effects.setdefault((effect.image, effect.name), {})[effect.tower] = effect

    def _reopen(self) -> None:
        assert self._settings_file
        assert self._pairs_file
        if not self._settings_file.exists():
            if self._pairs_file.exists():
                raise UserError(
                    f"{self._pairs_file} has no {SETTINGS} beside it; choose another folder"
                )
            return
        header = checksummed.read(
            self._settings_file, TraceHeader, "choose another folder, or delete this one"
        )
        stored, self.embedding_std = header.settings, header.embedding_std
        current = json.loads(json.dumps(self._settings))
        if different := [key for key in current if stored.get(key) != current[key]]:
            key = different[0]
            was, now = (str(settings.get(key))[:12] for settings in (stored, current))
            raise UserError(
                f"{self._settings_file.parent} holds a trace with {key} {was}, not {now}; "
                "delete it, or choose another folder",
                argument="folder=…",
            )
        if self._pairs_file.exists():
            self._read_pairs(self._pairs_file)

    def _read_pairs(self, file: Path) -> None:
        """All complete lines; a partial line, which a killed process leaves, is cut off."""
        remedy = "delete that line, and its pair is traced again"
        effects = [pair for pair, _ in checksummed.read_lines(file, PairEffects, remedy)]
        self._remember(effects)
        complete = b"".join(checksummed.to_line(pair.model_dump(mode="json")) for pair in effects)
        if complete != file.read_bytes():
            write_atomically(file, complete)
