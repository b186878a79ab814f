"""Builds the tokenizer: byte-level BPE with a pre-tokenizer that gives a word the same tokens in every context.

Spaces, digits, punctuation marks and runs of letters are never merged with each other, so copying a text is copying its
tokens. Only the JSON delimiters of a tool call are merged. Every byte has a token, so every text can be encoded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from training import chat, generator

VOCABULARY_SIZE = 1024
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKERS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
SPLIT_PATTERN = r'\{"|": \{"|": "|", "|"\}\}|[A-Z]?[a-z]+|[A-Z]|[0-9]|\s|[^\sA-Za-z0-9]'


def render_corpus(seed: int, count: int) -> Iterator[str]:
    """Yields `count` rendered training dialogues, without special tokens and markers."""
    for number in range(count):
        dialogue = generator.training_dialogue(f"tokenizer {seed} {number}")
        text = chat.render_prompt(dialogue.messages[:-1], dialogue.tools) + chat.render_completion(
            dialogue.messages[-1]
        )
        for marker in SPECIAL_TOKENS + MARKERS:
            text = text.replace(marker, "\n")
        yield text


def build_tokenizer(seed: int = 0, count: int = 4000) -> Tokenizer:
    """Trains the tokenizer on `count` dialogues of the generator."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    texts = list(render_corpus(seed, count))
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE - len(MARKERS),
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer = drop_unused_merges(tokenizer, texts)
    # Only after training, since a trained model numbers its own tokens from zero.
    tokenizer.add_tokens([AddedToken(marker, special=False, normalized=False) for marker in MARKERS])
    return tokenizer


def drop_unused_merges(tokenizer: Tokenizer, texts: Sequence[str]) -> Tokenizer:
    """Returns the tokenizer without the merges whose tokens occur nowhere in `texts`. All ids stay unchanged.

    BPE builds long tokens through intermediate ones. "Antiphon" is merged from "Ant" and "iphon", and no other word of
    the texts contains "iphon", so a model never trained on "iphon" could not copy "antiphon". Intermediate tokens are
    not needed: `ignore_merges` looks up a word that is a token without merging.
    """
    while True:
        state = json.loads(tokenizer.to_str())
        model = state["model"]
        used = {token for encoded in tokenizer.encode_batch(texts, add_special_tokens=False) for token in encoded.ids}
        unused = {
            token
            for token, index in model["vocab"].items()
            if len(token) > 1 and not token.startswith("<|") and index not in used
        }
        if not unused:
            return tokenizer
        model["merges"] = [pair for pair in model["merges"] if not unused & {*pair, "".join(pair)}]
        model["vocab"] = {
            f"<|step {index}|>" if token in unused else token: index for token, index in model["vocab"].items()
        }
        model["ignore_merges"] = True
        tokenizer = Tokenizer.from_str(json.dumps(state))


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes the tokenizer and the chat template in the format of transformers."""
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call] # not annotated there
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",  # noqa: S106 - no password
        pad_token="<|endoftext|>",  # noqa: S106 - no password
        model_max_length=4096,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = chat.TEMPLATE_FILE.read_text(encoding="utf-8")
    fast.save_pretrained(folder)
