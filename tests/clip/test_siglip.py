"""SigLIP and SigLIP 2 of transformers: how prompts and images reach them, and what is refused."""

import json
import logging
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from backbones import PROMPTS, random_pixels
from PIL import Image
from tiny import tiny_siglip, tiny_siglip_config, tiny_tokenizer

import retouch
from retouch.clip.hf.siglip import SiglipClip
from retouch.errors import UserError


def change(file: Path, **entries: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **entries}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder as transformers writes it, with the settings that SigLIP's has on the hub."""
    clip, folder = tiny_siglip(), tmp_path / "siglip"
    clip.model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    half = [0.5, 0.5, 0.5]
    settings = {"do_resize": True, "do_rescale": True, "do_normalize": True, "resample": 2}
    settings |= {"image_processor_type": "SiglipImageProcessor", "rescale_factor": 1 / 255}
    settings |= {"image_mean": half, "image_std": half, "size": {"height": 16, "width": 16}}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


def test_prompts_are_padded_to_full_length_in_lower_case_without_a_mask():
    clip = tiny_siglip()
    tokens = clip.tokenize(["A photo of the Dark Red", "red"])
    assert tokens.keys() == {"input_ids"}
    full = clip.tokenizer(
        ["a photo of the dark red", "red"], padding="max_length", max_length=16, return_tensors="pt"
    )
    assert torch.equal(tokens["input_ids"], full["input_ids"])
    assert clip.lengths(tokens) is None, "padding affects the feature"
    whole = clip.model.get_text_features(input_ids=full["input_ids"]).pooler_output
    torch.testing.assert_close(clip.encode_texts(tokens), whole)


def test_padding_is_on_the_right_even_where_the_tokenizer_has_it_on_the_left():
    tokenizer = tiny_tokenizer()
    tokenizer.padding_side = "left"  # as GemmaTokenizer has it, unless its config says otherwise
    plain = tiny_siglip()
    clip = SiglipClip(plain.model, tokenizer, plain.preprocess)
    assert torch.equal(clip.tokenize(PROMPTS)["input_ids"], plain.tokenize(PROMPTS)["input_ids"])
    assert clip.tokenize(["red"])["input_ids"][0, -1] == tokenizer.pad_token_id


def test_a_prompt_that_is_too_long_is_reported(caplog: pytest.LogCaptureFixture):
    clip = tiny_siglip()
    with caplog.at_level(logging.WARNING, "retouch"):
        tokens = clip.tokenize(["red " * 40, "blue"])
    assert tokens["input_ids"].shape == (2, 16)
    assert "42 tokens was cut at the model's 16" in caplog.text


def test_a_folder_of_siglip(folder: Path):
    clip, expected = retouch.load(folder), tiny_siglip()
    assert isinstance(clip, SiglipClip)
    pixels = random_pixels(clip)
    torch.testing.assert_close(clip.image_features(pixels), expected.image_features(pixels))
    assert torch.equal(clip.logit_bias, torch.tensor([-10.0]))
    with_loss = clip.model(pixel_values=clip.preprocess.normalize(pixels), **clip.tokenize(PROMPTS))
    similarity = clip.image_features(pixels) @ clip.text_features(clip.tokenize(PROMPTS)).T
    scores = clip.logit_scale * similarity + clip.logit_bias
    torch.testing.assert_close(scores, with_loss.logits_per_image, rtol=0, atol=1e-5)


def test_images_are_squashed_as_transformers_does(folder: Path):
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    clip = retouch.load(folder)
    assert clip.preprocess.resample == Image.Resampling.BILINEAR
    array = np.random.default_rng(0).integers(0, 256, (40, 30, 3), np.uint8)
    image = Image.fromarray(array)
    prepared = torch.tensor(clip.preprocess.prepare(image))
    mine = clip.preprocess.normalize(prepared[None])[0]
    processor = SiglipImageProcessorPil.from_pretrained(folder)
    theirs = processor(image, return_tensors="pt")["pixel_values"][0]
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)


def test_without_settings_images_are_prepared_as_siglip_does(
    folder: Path, caplog: pytest.LogCaptureFixture
):
    (folder / "preprocessor_config.json").unlink()
    with caplog.at_level(logging.WARNING, "retouch"):
        preprocess = retouch.load(folder).preprocess
    assert "images are prepared as SigLIP does, at 16 pixels" in caplog.text
    assert (preprocess.shortest, preprocess.mean, preprocess.std) == (None, (0.5,) * 3, (0.5,) * 3)


def test_a_size_that_does_not_fit_is_refused(folder: Path):
    change(folder / "preprocessor_config.json", size={"height": 32, "width": 32})
    with pytest.raises(UserError, match=r"32×32, and the model takes 16×16; set size"):
        retouch.load(folder)


def test_saved_and_loaded_again(tmp_path: Path):
    clip = tiny_siglip()
    clip.save(tmp_path / "saved")
    again = retouch.load(tmp_path / "saved")
    assert again.preprocess == clip.preprocess
    assert torch.equal(again.tokenize(PROMPTS)["input_ids"], clip.tokenize(PROMPTS)["input_ids"])
    pixels = random_pixels(clip)
    assert torch.equal(again.image_features(pixels), clip.image_features(pixels))


def test_naflex_is_refused_by_name(tmp_path: Path):
    import transformers

    transformers.Siglip2Config().save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"NaFlex.*Use a SigLIP 2 of fixed size, such as google/"):
        retouch.load(tmp_path)


def test_a_tower_without_its_pooling_head_is_refused():
    import transformers

    config = tiny_siglip_config()
    config.vision_config.vision_use_head = False
    clip, model = tiny_siglip(), transformers.SiglipModel(config)
    with pytest.raises(UserError, match="no pooling head"):
        SiglipClip(model, clip.tokenizer, clip.preprocess, "headless")


@pytest.mark.skipif(find_spec("sentencepiece") is not None, reason="sentencepiece is installed")
def test_a_tokenizer_that_needs_sentencepiece_says_so(folder: Path):
    change(folder / "tokenizer_config.json", tokenizer_class="SiglipTokenizer")
    with pytest.raises(UserError, match=r"SentencePiece.*pip install 'retouch\[siglip\]'"):
        retouch.load(folder)
