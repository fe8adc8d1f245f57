"""The change of a model as one small file: compute, store, apply, undo and merge it."""
