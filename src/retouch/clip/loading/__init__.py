"""Loading a CLIP: by name, from the hub, from a user's Python file."""
