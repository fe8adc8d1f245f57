"""Prompts that are longer than the context: each model and each run warns of them."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from backbones import (
    dual,
    open_clip,
    open_clip_with_hf_tokenizer,
    open_clip_without_causal_mask,
)
from recipes_for_tests import learn, quick, reference
from tiny import images, tiny_clip

from retouch.clip import Clip
from retouch.data import Stream
from retouch.data.stores.string_array import StringArray
from retouch.evaluate import Results
from retouch.methods import Settings
from retouch.train import teach


@pytest.mark.parametrize(
    "make", [tiny_clip, dual, open_clip, open_clip_with_hf_tokenizer, open_clip_without_causal_mask]
)
def test_a_truncated_prompt_is_quoted_once(
    make: Callable[[], Clip], caplog: pytest.LogCaptureFixture
):
    clip = make()
    long = "a photo of " + f"red blue green {make.__name__} " * 40
    with caplog.at_level(logging.WARNING, "retouch"):
        tokens = clip.tokenize(["red", long])
        clip.tokenize([long])
        clip.tokenize(["dark red " * 5])  # which just fits the smallest
    assert clip.text_features(tokens).shape[0] == 2
    warnings = [r for r in caplog.records if "cut at the model's" in r.getMessage()]
    assert len(warnings) == 1


@pytest.mark.slow
def test_every_model_and_every_run_warns_of_truncated_prompts(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
):
    """Five are quoted and all are counted, however many this process has reported before."""
    long = [f"{letter} " + "red " * 20 for letter in "abcdefgh"]
    for clip in (tiny_clip(), tiny_clip()):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "retouch"):
            clip.tokenize(long)
            clip.tokenize(long)
        messages = [record.getMessage() for record in caplog.records]
        assert len(messages) == 6
        assert messages[-1].startswith("8 prompts in all were cut at the model's 12 tokens")
    train, test = (replace(images(n, 6, 2), classes=long[:6]) for n in ("train", "test"))
    for out in (tmp_path / "first", tmp_path / "second"):  # two runs of the same model
        stream = Stream.split(train, test, tasks=2, order=0)
        results = teach(clip, stream, "flyp", settings=Settings(epochs=1, batch=4), out=out)
        quoted = [note for note in results.notes if note.startswith("a prompt of")]
        totals = [note for note in results.notes if "prompts in all" in note]
        assert len(quoted) == 5
        assert totals[0].startswith("6 prompts in all")
        assert Results.read(out).notes == results.notes


@pytest.mark.slow
def test_long_captions_are_quoted_five_times_too(caplog: pytest.LogCaptureFixture):
    pairs = reference(24)
    captions = StringArray([f"{number} " + "red " * 20 for number in range(24)])
    stream = Stream.split(images("train", 2, 4), images("test", 2, 2), tasks=1)
    with caplog.at_level(logging.WARNING, "retouch"):
        learn(
            tiny_clip(),
            stream,
            quick("lora-ewc+er"),
            settings=Settings(epochs=1, batch=4),
            reference=replace(pairs, captions=captions),
        )
    messages = [record.getMessage() for record in caplog.records]
    assert len([text for text in messages if text.startswith("a prompt of")]) == 5
    assert any(text.startswith("24 prompts in all") for text in messages)
