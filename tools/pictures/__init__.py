"""Pictures drawn by code: a broad world, and traffic signs that do not occur in it."""
