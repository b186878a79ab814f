"""Texts whose messages come again: the same ids as of the whole, and remembered for nobody else."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from antiphon.harmony.tokens.encode_cache import MIN_PIECE_CHARS, CachedEncoder

END = "<|im_end|>"
WORDS = [
    "a",
    "word ",
    " two",
    "\n",
    "  ",
    "é",
    "e\u0301",
    "\u0301",
    "\u2581",
    "12",
    "3",
    "<",
    "|im_end|",
    END,
    "<think>",
]


def tokenizer(normalizer: Any = None, pre: Any = None, **flags: bool) -> Tokenizer:
    """One whose tokens are letters and some pairs of them."""
    letters = sorted(
        {letter for word in WORDS for letter in word} | set(pre_tokenizers.ByteLevel.alphabet()) | {"\u2581"}
    )
    vocabulary = {letter: n for n, letter in enumerate([*letters, "wo", "\u2581a", "Ġt", "12"])}
    found = Tokenizer(models.BPE(vocabulary, [("w", "o"), ("\u2581", "a"), ("Ġ", "t"), ("1", "2")]))
    found.normalizer = normalizer  # type: ignore[assignment]
    found.pre_tokenizer = pre
    found.add_special_tokens([AddedToken(END, normalized=False, special=True, **flags)])
    found.add_tokens([AddedToken("<think>", normalized=False)])
    return found


def encoder(found: Tokenizer) -> Callable[[str], list[int]]:
    return lambda text: list(found.encode(text, add_special_tokens=False).ids)


TOKENIZERS = {
    "bytes": lambda: tokenizer(pre=pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "bytes with a blank in front": lambda: tokenizer(pre=pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "composed": lambda: tokenizer(normalizers.NFC(), pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "in front of all": lambda: tokenizer(normalizers.Prepend("\u2581")),
    "in front of the first": lambda: tokenizer(pre=pre_tokenizers.Metaspace(prepend_scheme="first")),
    "stripped": lambda: tokenizer(normalizers.Strip(), pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "strips to the left": lambda: tokenizer(pre=pre_tokenizers.ByteLevel(add_prefix_space=False), lstrip=True),
    "strips to the right": lambda: tokenizer(pre=pre_tokenizers.ByteLevel(add_prefix_space=False), rstrip=True),
    "a word of its own": lambda: tokenizer(pre=pre_tokenizers.ByteLevel(add_prefix_space=False), single_word=True),
}
PROVED = {"bytes", "composed", "in front of all", "in front of the first"}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_ids_are_those_of_the_whole_text(name: str) -> None:
    found = TOKENIZERS[name]()
    encode, chance = encoder(found), random.Random(1)
    added = {token.content: number for number, token in found.get_added_tokens_decoder().items()}
    pieces = CachedEncoder(encode, [END], added)
    assert pieces._cut is not None or name not in PROVED
    for _ in range(300):
        text = "".join(chance.choices(WORDS, k=chance.randint(0, 200)))
        for _ in range(2):
            assert pieces.encode(text, "me") == encode(text)


class Counted:
    """Encodes to bytes, and knows how often."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, text: str) -> list[int]:
        self.asked.append(text)
        return [
            256 if part == END else byte for part in _parts(text) for byte in (part.encode() if part != END else b"?")
        ]


def _parts(text: str) -> list[str]:
    first, *rest = text.split(END)
    return [first, *(part for later in rest for part in (END, later))]


def counted(**options: Any) -> tuple[CachedEncoder, Counted]:
    encode = Counted()
    pieces = CachedEncoder(encode, [END], {END: 256}, **options)
    encode.asked.clear()
    return pieces, encode


def test_what_is_said_again_is_not_encoded_again_but_for_its_owner_alone() -> None:
    pieces, encode = counted()
    said, more = "x" * MIN_PIECE_CHARS, "y" * MIN_PIECE_CHARS
    text = f"{said}{END}{said}{END}"
    assert pieces.encode(text, "me") == encode(text)
    encode.asked.clear()
    assert pieces.encode(f"{text}{more}", "me") == Counted()(f"{text}{more}")
    assert encode.asked == [f"{END}{more}"]
    encode.asked.clear()
    pieces.encode(f"{text}{more}", "you")
    assert len(encode.asked) == 3


def test_what_was_not_asked_for_lately_is_forgotten() -> None:
    pieces, encode = counted(bound=20 * MIN_PIECE_CHARS)
    texts = [str(n) * 3 * MIN_PIECE_CHARS for n in range(9)]
    for text in texts:  # turned over with the fourth and the eighth
        pieces.encode(text, "me")
        pieces.encode(texts[0], "me")
    assert encode.asked == texts
    pieces.encode(texts[1], "me")
    assert encode.asked == [*texts, texts[1]]
    held = [*pieces._memory._known, *pieces._memory._older]
    assert sum(len(piece) for _, piece in held) <= 20 * MIN_PIECE_CHARS + len(texts[0])


@pytest.mark.parametrize("other", ["<|im_end|>!", "!<|im_end|>", "a<", "b<|im_end|", "<|im_end|><|im_end|>"])
def test_an_end_that_others_hold_or_run_into_is_no_place_to_cut(other: str) -> None:
    assert CachedEncoder(Counted(), [END], {END: 256, other: 257})._cut is None
    assert CachedEncoder(Counted(), [END], {END: 256, "<think>": 257})._cut is not None
    assert CachedEncoder(Counted(), [], {END: 256})._cut is None
    assert CachedEncoder(Counted(), ["</s>"], {END: 256})._cut is None
