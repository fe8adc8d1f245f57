"""The pre-training of the small CLIP that comes with the package."""
