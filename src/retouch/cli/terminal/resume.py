"""How to go on with a command that was stopped."""

from pathlib import Path


class Resume:
    """What resumes a command that was stopped. Create it before the command writes anything."""

    def __init__(self, folder: Path | None, overwrite: bool = False) -> None:
        """Remember what the folder holds.

        Args:
            folder: Where the command writes, and resumes if it is given again.
            overwrite: Whether the command replaces the run that the folder holds.
        """
        self._folder = folder
        self._overwrite = overwrite
        self._before = self._begun()

    @property
    def command(self) -> str:
        """The command that goes on where this one was stopped."""
        return "the same command without --overwrite" if self._replaces() else "the same command"

    def sentence(self) -> str:
        """Where everything is and how to go on; empty if there is nothing yet."""
        if self._folder is None or not self._folder.exists():
            return ""
        if self._overwrite and not self._replaces():
            return f"{self._folder} is as it was."
        done = f"Everything done so far is in {self._folder}; {self.command} resumes it."
        return f"{done} {_replaced(self._folder)}".rstrip() if self._overwrite else done

    def _replaces(self) -> bool:
        """Whether the command has begun to replace the run that the folder held."""
        return self._overwrite and self._begun() != self._before

    def _begun(self) -> int | None:
        """When the run in the folder was begun; a run that is moved away and back keeps it."""
        if not self._overwrite or self._folder is None:
            return None
        from retouch.train.run_folder.read import CONFIG

        file = self._folder / CONFIG
        return file.stat().st_mtime_ns if file.is_file() else None


def _replaced(folder: Path) -> str:
    """Where the run is that is being replaced, if it still exists."""
    from retouch.train.run_folder.set_aside import aside_of, is_set_aside

    if not is_set_aside(folder):
        return ""
    return f"The run that was there is in {aside_of(folder)} until the new one has learned a task."
