"""open_clip, which reads its vocabulary once for all tokenizers of a test process."""

from functools import cache
from types import ModuleType
from typing import Any

from retouch.clip.open_clip.model import import_open_clip


@cache
def open_clip_library() -> ModuleType:
    """The library itself. A tokenizer is made a hundred times, in a quarter of a second each."""
    library = import_open_clip()
    tokenizer = library.tokenizer.SimpleTokenizer
    build, built = tokenizer.__init__, dict[str, dict[str, Any]]()

    def build_once(self: Any, *args: Any, **options: Any) -> None:
        key = repr((args, sorted(options.items())))
        if key not in built:
            build(self, *args, **options)
            built[key] = {**vars(self), "cache": dict(self.cache)}
        vars(self).update(built[key], cache=dict(built[key]["cache"]))

    tokenizer.__init__ = build_once
    return library
