"""Engines run the cells of a bench: one after another, several at a time, or on a Ray cluster."""
