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
        replaced = self._overwrite and self._begun() != self._before
        return "the same command without --overwrite" if replaced else "the same command"

    def sentence(self) -> str:
        """Where everything is and how to go on; empty if there is nothing yet."""
        if self._folder is None or not self._folder.exists():
            return ""
        if self._overwrite and self._begun() == self._before:
            return f"{self._folder} is as it was."
        done = f"Everything done so far is in {self._folder}; {self.command} resumes it."
        return f"{done} {self._replaced()}".rstrip()

    def _replaced(self) -> str:
        """Where the run is that is being replaced, if it still exists."""
        if not self._overwrite or self._folder is None:
            return ""
        from retouch.train.set_aside import aside_of, is_set_aside

        if not is_set_aside(self._folder):
            return ""
        aside = self._folder.parent / aside_of(self._folder).name
        return f"The run that was there is in {aside} until the new one has learned a task."

    def _begun(self) -> int | None:
        """When the run in the folder was begun; a run that is moved away and back keeps it."""
        if not self._overwrite or self._folder is None:
            return None
        from retouch.train.run_folder import CONFIG

        file = self._folder / CONFIG
        return file.stat().st_mtime_ns if file.is_file() else None
