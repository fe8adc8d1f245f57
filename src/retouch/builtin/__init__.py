"""The small CLIP and the pictures that come with the package."""

from retouch.builtin.images import control_images, sign_images, world_pairs

__all__ = ["control_images", "sign_images", "world_pairs"]
