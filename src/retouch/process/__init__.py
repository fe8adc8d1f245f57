"""This Python process and those it starts."""
