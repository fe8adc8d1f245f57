"""Decoded and resized images, kept as 8-bit pixels in a file."""
