"""This Python process, those it starts, and its CUDA streams."""
