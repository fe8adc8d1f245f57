"""Learned prompts in a visual tower, those of L2P and DualPrompt."""
