"""CLIPs of the transformers library."""
