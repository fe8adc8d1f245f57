"""A stream of several data sets: labels, names, prompts and tasks of each."""

from dataclasses import replace

import numpy as np
import pytest
from domains import colors, paints, two_streams
from tiny import tiny_clip

from retouch.data import Stream
from retouch.data.stores.string_array import StringArray
from retouch.errors import UserError


def test_tasks_come_data_set_by_data_set_with_their_own_images():
    streams = two_streams()
    stream = Stream.join(streams)
    assert [task.number for task in stream.tasks] == [0, 1, 2]
    assert [stream.domain_of(task) for task in stream.tasks] == ["colors", "colors", "paints"]
    preprocess = tiny_clip().preprocess
    own = [(name, task) for name, each in streams.items() for task in each.tasks]
    for task, (name, expected) in zip(stream.tasks, own, strict=True):
        for part in ("train", "test"):
            joined, single = getattr(stream, part), getattr(streams[name], part)
            positions, own_positions = getattr(task, part), getattr(expected, part)
            pixels = joined.read(positions, preprocess), single.read(own_positions, preprocess)
            assert np.array_equal(*pixels)
            assert set(joined.labels[positions]) == set(task.classes)


def test_classes_of_the_same_name_stay_apart_and_keep_their_prompts():
    stream = Stream.join(two_streams())
    train = stream.train
    assert len(set(train.classes)) == len(train.classes) == 10
    twins = ["dark red (colors)", "dark red (paints)"]
    labels = [train.classes.index(name) for name in twins]
    assert train.class_prompts(labels) == ["a photo of dark red", "the dark red"]
    both = np.concatenate([train.of_classes([label])[:2] for label in labels])
    texts, index = train.texts(both)
    assert [texts[i] for i in index] == ["a photo of dark red"] * 2 + ["the dark red"] * 2
    note = next(note for note in train.notes if "dark red" in note)
    assert "(and 1 more) is a class of colors and of paints" in note
    assert "its own data set" in note


def test_the_note_on_twins_says_how_they_are_judged():
    for options, expected in (
        ({"choices": "all"}, "told apart by their prompts"),
        ({"choices": "all", "twins": "merge"}, "count as one class"),
    ):
        assert expected in " ".join(Stream.join(two_streams(), **options).train.notes)
    streams = two_streams()
    alone = Stream.join({"paints": streams["paints"]})
    assert alone.train.notes == []


def test_equal_prompts_of_two_data_sets_are_one_text():
    sets = {}
    for name, make in (("colors", colors), ("paints", paints)):
        parts = [replace(make(split, 3), prompt="a {}") for split in ("train", "test")]
        sets[name] = Stream.split(*parts, tasks=1)
    train = Stream.join(sets).train
    texts, index = train.texts(np.arange(len(train)))
    assert len(texts) == len(set(texts)) == 8  # 10 classes, of which 2 have a twin
    assert [texts[i] for i in index] == [train.class_prompts([label])[0] for label in train.labels]


def test_captions_of_one_data_set_are_kept():
    streams = two_streams()
    words = StringArray(["a pale one", *[""] * (len(streams["paints"].train) - 1)])
    captioned = replace(streams["paints"].train, captions=words)
    streams["paints"] = replace(streams["paints"], train=captioned)
    train = Stream.join(streams).train
    first = len(streams["colors"].train)
    texts, index = train.texts(np.array([0, first, first + 1]))
    assert [texts[i] for i in index][1:] == ["a pale one", "the pale red"]
    assert texts[index[0]].startswith("a photo of ")


def test_what_cannot_be_joined_is_explained():
    streams = two_streams()
    joined = Stream.join(streams)
    for wrong, message in (
        (list(streams.values()), "by the name of their data set"),
        ({}, "by the name of their data set"),
        ({"both": joined}, "'both' is of several data sets already"),
        (
            {"photos": colors("train", 2)},
            r"streams\['photos'\] cannot be an Images; give streams by the name",
        ),
    ):
        with pytest.raises(UserError, match=message):
            Stream.join(wrong)
    with pytest.raises(UserError, match="choices='some' is unknown; choose seen, domain, all"):
        Stream.join(streams, choices="some")
    with pytest.raises(UserError, match="twins='both' is unknown; choose separate, merge"):
        Stream.join(streams, twins="both")
