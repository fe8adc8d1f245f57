"""Effects on disk, pair by pair, so that a trace that was stopped goes on where it was."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from retouch import checksummed
from retouch.analysis.effects import Effect
from retouch.analysis.hooks import TowerName
from retouch.errors import UserError, first_problem
from retouch.files import write_atomically

SETTINGS, PAIRS = "settings.json", "pairs.jsonl"


class Journal:
    """What is known of a trace; with a folder, it is kept there."""

    def __init__(self, folder: Path | None, settings: Mapping[str, Any]) -> None:
        self._file = folder / PAIRS if folder else None
        self._head = folder / SETTINGS if folder else None
        self._settings = dict(settings)
        self._known: dict[tuple[str, str], dict[TowerName, Effect]] = {}
        self.deviations: dict[TowerName, float] = {}
        """Of the embeddings; measured once."""
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
            self._reopen()

    def begin(self, deviations: Mapping[TowerName, float]) -> None:
        """From here on these are the deviations of the embeddings."""
        self.deviations = dict(deviations)
        if self._head:
            told = {"settings": self._settings, "deviations": self.deviations}
            checksummed.write_json(self._head, told)

    def get(self, image: str, name: str) -> list[Effect] | None:
        """The effects of a pair in every tower, if they are known."""
        found = self._known.get((image, name), {})
        return list(found.values()) if found.keys() == self.deviations.keys() else None

    def add(self, effects: Sequence[Effect]) -> None:
        """Keep the effects of a pair, on disk at once."""
        for effect in effects:
            self._known.setdefault((effect.image, effect.name), {})[effect.tower] = effect
        if self._file:
            with self._file.open("ab") as file:
                file.writelines(
                    checksummed.to_line(each.model_dump(mode="json")) for each in effects
                )
                file.flush()
                os.fsync(file.fileno())

    def _reopen(self) -> None:
        assert self._head
        assert self._file
        if not self._head.exists():
            if self._file.exists():
                raise UserError(f"{self._file} has no {SETTINGS} beside it; choose another folder")
            return
        told = checksummed.read_json(self._head, "choose another folder, or delete this one")
        before, self.deviations = told.get("settings", {}), told.get("deviations", {})
        now = json.loads(json.dumps(self._settings))
        odd = [key for key in now if before.get(key) != now[key]]
        if odd:
            was, is_now = (str(told.get(odd[0]))[:12] for told in (before, now))
            raise UserError(
                f"{self._head.parent} holds a trace with {odd[0]} {was}, not {is_now}; choose "
                "another folder with --out, or delete this one"
            )
        if self._file.exists():
            self._read(self._file)

    def _read(self, file: Path) -> None:
        """All whole lines; half of one is what a kill leaves behind, and is cut off."""
        lines = checksummed.read_lines(file, "delete that line, and its pair is traced again")
        for number, line in enumerate(lines, 1):
            try:
                effect = Effect.model_validate(line)
            except ValidationError as why:
                raise UserError(
                    f"line {number} of {file} is of another version ({first_problem(why)}); "
                    "delete that line, and its pair is traced again"
                ) from None
            self._known.setdefault((effect.image, effect.name), {})[effect.tower] = effect
        whole = b"".join(checksummed.to_line(line) for line in lines)
        if whole != file.read_bytes():
            write_atomically(file, whole)
