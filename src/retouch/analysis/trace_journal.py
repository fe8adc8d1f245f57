"""Effects on disk, pair by pair, so that a trace that was stopped goes on where it was."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from retouch.analysis.effects import Effect
from retouch.analysis.sites import TowerName
from retouch.errors import UserError
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
            write_atomically(self._head, json.dumps(told, indent=1, ensure_ascii=False))

    def get(self, image: str, name: str) -> list[Effect] | None:
        """The effects of a pair in every tower, if they are known."""
        found = self._known.get((image, name), {})
        return list(found.values()) if found.keys() == self.deviations.keys() else None

    def add(self, effects: Sequence[Effect]) -> None:
        """Keep the effects of a pair, on disk at once."""
        for effect in effects:
            self._known.setdefault((effect.image, effect.name), {})[effect.tower] = effect
        if self._file:
            with self._file.open("a", encoding="utf-8") as file:
                file.write("".join(effect.model_dump_json() + "\n" for effect in effects))
                file.flush()
                os.fsync(file.fileno())

    def _reopen(self) -> None:
        assert self._head
        assert self._file
        if not self._head.exists():
            if self._file.exists():
                raise UserError(f"{self._file} has no {SETTINGS} beside it; choose another folder")
            return
        try:
            told = json.loads(self._head.read_text("utf-8"))
            before, self.deviations = told["settings"], told["deviations"]
        except (ValueError, KeyError, TypeError) as why:
            raise UserError(
                f"{self._head} is damaged ({why}); choose another folder, or delete this one"
            ) from None
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
        content = file.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                effect = Effect.model_validate_json(line)
            except ValidationError as why:
                reason = why.errors()[0]["msg"]
                raise UserError(
                    f"line {number} of {file} is damaged ({reason}); delete that line, and its "
                    "pair is traced again"
                ) from None
            self._known.setdefault((effect.image, effect.name), {})[effect.tower] = effect
        if whole != content:
            write_atomically(file, whole)
