"""Pictures drawn by code: a broad world, and traffic signs that it does not hold."""
