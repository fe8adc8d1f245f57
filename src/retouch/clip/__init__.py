"""A CLIP, whichever library it comes from: encode images and texts, tokenize, preprocess images."""

from retouch.clip.dual_encoder import DualEncoder
from retouch.clip.loading.load import load
from retouch.clip.losses import Batch, Features
from retouch.clip.model import Clip
from retouch.clip.preprocess import Preprocess
from retouch.clip.text.tokens import Tokens

__all__ = ["Batch", "Clip", "DualEncoder", "Features", "Preprocess", "Tokens", "load"]
