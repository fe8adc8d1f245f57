"""Prompts: from class names to tokens and text features."""
