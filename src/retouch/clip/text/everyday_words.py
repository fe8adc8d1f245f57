"""A few hundred everyday words: what a model knows beyond the classes it is taught."""

from importlib.resources import files

from torch import Tensor

from retouch.clip.model import Clip
from retouch.clip.text.zero_shot import PromptEnsemble

TEMPLATE = "a photo of {}"


def words() -> list[str]:
    """Animals, food, places, objects, people, activities, colors, feelings and styles."""
    return (files("retouch.clip.text") / "everyday_words.txt").read_text().splitlines()


def word_prompts(clip: Clip) -> PromptEnsemble:
    """One prompt per word, tokenized once; keep it to encode them again."""
    return PromptEnsemble(clip, [(words(), (TEMPLATE,))])


def word_features(clip: Clip) -> Tensor:
    """One text feature per word [W, D]."""
    return word_prompts(clip).features(clip)
