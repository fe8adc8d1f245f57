"""CLIPs of the open_clip library, an extra."""
