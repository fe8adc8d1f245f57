"""Learned against forgotten, over a range of learning rates: points, figure and best rates."""
