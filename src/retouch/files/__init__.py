"""Reading and writing files: whole or not at all, locked, with checksums."""
