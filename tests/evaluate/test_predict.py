"""Zero-shot predictions against the similarities of the model itself."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import CLASSES, images, tiny_clip

from retouch.data.stores.file import FileStore
from retouch.errors import UserError
from retouch.evaluate.choices import ClassChoices
from retouch.evaluate.predict import classify_images, predict


def test_an_image_gets_the_nearest_class_and_passes_the_tower_once():
    clip, test = tiny_clip(), images("test", 6, 4)
    sizes: list[int] = []
    encode = clip.encode_images
    clip.encode_images = lambda pixels: sizes.append(len(pixels)) or encode(pixels)
    predicted = predict(clip, test)
    assert sum(sizes) == len(test) == len(predicted)
    prompts = clip.tokenize([f"a photo of {name}" for name in CLASSES])
    with torch.no_grad():
        pixels = torch.from_numpy(test.read(np.arange(len(test)), clip.preprocess))
        similarity = clip.image_features(pixels) @ clip.text_features(prompts).T
    assert predicted.tolist() == similarity.argmax(1).tolist()
    among_two = predict(clip, test, choices=[4, 1])
    assert among_two.tolist() == [[4, 1][i] for i in similarity[:, [4, 1]].argmax(1)]
    assert predict(clip, test.subset(np.arange(0))).tolist() == []


def test_probabilities_are_over_the_whole_list(tmp_path: Path):
    clip, test = tiny_clip(), images("test", 6, 1)
    test.store.image(0).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"broken")
    files = FileStore(tmp_path, ["a.png", "b.png"])
    choices = ClassChoices.of_names(CLASSES, ["a photo of {}"])
    (first, second), unreadable = classify_images(clip, files, choices, top=9)
    assert [image.index for image in unreadable] == [1]
    assert second == []
    assert sorted(prediction.name for prediction in first) == sorted(CLASSES)
    probabilities = [prediction.probability for prediction in first]
    assert probabilities == sorted(probabilities, reverse=True)
    assert sum(probabilities) == pytest.approx(1, abs=1e-5)
    assert CLASSES.index(first[0].name) == predict(clip, test)[0]
    assert len(classify_images(clip, files, choices, top=2)[0][0]) == 2


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", ["visual_projection.weight", "text_projection.weight"])
def test_a_model_with_nan_gives_an_error_and_not_the_first_class(name: str, value: float):
    clip, test = tiny_clip(), images("test", 6, 1)
    choices = ClassChoices.of_names(CLASSES, ["a photo of {}"])
    clip.model.get_parameter(name).data[0, 0] = value
    for answer in (
        lambda: predict(clip, test),
        lambda: classify_images(clip, test.store, choices),
    ):
        with pytest.raises(
            UserError, match=rf"^tiny has 1 of .* the first in {name}; take another"
        ):
            answer()


def test_features_that_overflow_are_an_error():
    """Weights that are finite may still be too large to compute with."""
    clip, test = tiny_clip(), images("test", 6, 1)
    clip.model.get_parameter("visual_projection.weight").data.fill_(3e38)
    with pytest.raises(UserError, match=r"^tiny gives features .* of 6 of 6 images; take another"):
        predict(clip, test)
