"""The folder of a run: what it holds, and how it is written, read, locked and replaced."""
