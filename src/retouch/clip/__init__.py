"""A CLIP, whichever library it comes from: encode images and texts, tokenise, prepare pixels."""

from retouch.clip.contrast import Batch, Features
from retouch.clip.load import load
from retouch.clip.model import Clip, Pair, Tokens
from retouch.clip.pixels import Pixels

__all__ = ["Batch", "Clip", "Features", "Pair", "Pixels", "Tokens", "load"]
