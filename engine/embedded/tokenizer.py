"""Builds the tokenizer: byte-level BPE over words cut so that a word has the same tokens wherever it stands.

A blank, a digit, a mark and a run of letters are always separate, so copying a text is copying its tokens. Only the
frame of a tool call is joined. Every byte has a token, so every text can be encoded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from antiphon.engine.embedded import chat, generator

VOCABULARY_SIZE = 1024
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKERS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
SPLIT_PATTERN = r'\{"|": \{"|": "|", "|"\}\}|[A-Z]?[a-z]+|[A-Z]|[0-9]|\s|[^\sA-Za-z0-9]'


def render_corpus(seed: int, count: int) -> Iterator[str]:
    """Rendered training dialogues."""
    for number in range(count):
        one = generator.training_dialogue(f"tokenizer {seed} {number}")
        text = chat.render_prompt(one.messages[:-1], one.tools) + chat.render_completion(one.messages[-1])
        for marker in SPECIAL_TOKENS + MARKERS:
            text = text.replace(marker, "\n")
        yield text


def build_tokenizer(seed: int = 0, count: int = 4000) -> Tokenizer:
    """Learn the merges from the generator's own text."""
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
    # After the training: a trained model numbers its own tokens from zero.
    tokenizer.add_tokens([AddedToken(marker, special=False, normalized=False) for marker in MARKERS])
    return tokenizer


def drop_unused_merges(tokenizer: Tokenizer, texts: Sequence[str]) -> Tokenizer:
    """The tokenizer without the joins that it passes through only on the way to longer ones, all ids unchanged.

    `Antiphon` is joined from `Ant` and `iphon`, which stands nowhere else in the texts: a model that never met `iphon`
    could not copy `antiphon`. Words that are tokens themselves are looked up whole, so they need no such steps.
    """
    while True:
        whole = json.loads(tokenizer.to_str())
        model = whole["model"]
        met = {token for encoded in tokenizer.encode_batch(texts, add_special_tokens=False) for token in encoded.ids}
        steps = {t for t, n in model["vocab"].items() if len(t) > 1 and not t.startswith("<|") and n not in met}
        if not steps:
            return tokenizer
        model["merges"] = [pair for pair in model["merges"] if not steps & {*pair, "".join(pair)}]
        model["vocab"] = {f"<|step {n}|>" if t in steps else t: n for t, n in model["vocab"].items()}
        model["ignore_merges"] = True
        tokenizer = Tokenizer.from_str(json.dumps(whole))


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the tokenizer and the chat template as transformers reads them."""
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call] # not annotated there
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",  # noqa: S106 - no password
        pad_token="<|endoftext|>",  # noqa: S106 - no password
        model_max_length=4096,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = chat.TEMPLATE_FILE.read_text(encoding="utf-8")
    fast.save_pretrained(folder)
