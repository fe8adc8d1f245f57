"""The small CLIP before training: a tokenizer for the world's captions, and random weights."""

from typing import Any

import numpy as np

from tools.pictures import world

SIZE, PATCH, CONTEXT, VOCABULARY = 64, 16, 32, 1000
# The end is token 3: transformers pools a text at its largest token if the config says it is 2.
PAD, START, UNKNOWN, END = "<pad>", "<start>", "<unknown>", "<end>"


def make_tokenizer(seed: int, captions: int) -> Any:
    """Byte pairs of the world's captions; every letter is a token, so any word can be written."""
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

    tokenizer = tokenizers.Tokenizer(models.BPE(end_of_word_suffix="</w>", unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    letters = [chr(c) for c in range(32, 127)]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, START, UNKNOWN, END],
        end_of_word_suffix="</w>",
        initial_alphabet=letters + [f"{letter}</w>" for letter in letters],
        show_progress=False,
    )
    tokenizer.train_from_iterator(world.corpus(np.random.default_rng(seed), captions), trainer)
    ends = [(START, tokenizer.token_to_id(START)), (END, tokenizer.token_to_id(END))]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{START} $A {END}", special_tokens=ends
    )
    return tokenizer


def wrap_tokenizer(tokenizer: Any) -> Any:
    """The tokenizer as transformers saves and loads it."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=START,
        eos_token=END,
        model_max_length=CONTEXT,
    )


def make_model(tokenizer: Any, width: int, layers: int, text_width: int, text_layers: int) -> Any:
    """A `CLIPModel` from transformers, small enough for two CPU cores."""
    from transformers import CLIPConfig, CLIPModel

    def tower(width: int, layers: int) -> dict[str, int]:
        shape = {"hidden_size": width, "intermediate_size": 4 * width, "projection_dim": 128}
        return {**shape, "num_hidden_layers": layers, "num_attention_heads": width // 32}

    tokens = {
        f"{name}_token_id": tokenizer.token_to_id(token)
        for name, token in (("pad", PAD), ("bos", START), ("eos", END))
    }
    text = {**tower(text_width, text_layers), **tokens, "max_position_embeddings": CONTEXT}
    return CLIPModel(
        CLIPConfig(
            text_config={**text, "vocab_size": tokenizer.get_vocab_size()},
            vision_config={**tower(width, layers), "image_size": SIZE, "patch_size": PATCH},
            projection_dim=128,
        )
    )
