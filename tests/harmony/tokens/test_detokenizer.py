"""The detokenizer: whole characters, token offsets and logprobs; the two vocabularies; and casts of schema values."""

import itertools
import random

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from antiphon.events.items import Logprob
from antiphon.harmony.detection.detect import DIALECTS
from antiphon.harmony.parsing.schema_values import allowed_types, can_stream_as_string, cast_value
from antiphon.harmony.tokens.detokenizer import Detokenizer, MarkerAlphabet
from antiphon.harmony.tokens.vocabulary import ByteVocabulary, TokenizerVocabulary
from antiphon.state.segments import Say
from tests.harmony import parser_helpers


def create_marker_alphabet() -> MarkerAlphabet:
    return MarkerAlphabet(ByteVocabulary(("<think>",), ("<|end|>",)), ("<think>",))


def test_bytes_decode_as_in_python_for_any_split() -> None:
    rng = random.Random("bytes")
    for _ in range(parser_helpers.RANDOM_OUTPUTS * 5):
        data = bytes(rng.choices(b"A\xe2\x82\xac\xf0\x9f\x98\x80\xed\xa0\xff\xc3\xa9", k=rng.randint(0, 12)))
        detokenizer = Detokenizer(create_marker_alphabet())
        decoded = detokenizer.feed(list(data))[0] + detokenizer.finish()
        bytewise_detokenizer = Detokenizer(create_marker_alphabet())
        assert (
            "".join([bytewise_detokenizer.feed([byte])[0] for byte in data]) + bytewise_detokenizer.finish()
            == decoded
            == data.decode("utf-8", "replace")
        )


def test_token_offset_is_the_character_of_its_first_byte() -> None:
    euro_bytes = list("€".encode())
    text, starts = Detokenizer(create_marker_alphabet()).feed(
        [65, *euro_bytes, 66, euro_bytes[0], 66, 256, euro_bytes[0], 257, 67]
    )
    assert starts == [0, 1, 1, 1, 2, 3, 4, 5, 6, 7, 8]
    assert text[:5] == "A€B�B" and text[6] == "�" and text[8] == "C"


@pytest.mark.parametrize("name", ["hermes", "gpt-oss"])
def test_logprob_offsets_are_the_starts_of_their_tokens(name: str) -> None:
    model_format = parser_helpers.load_token_format(name)
    prefix = (
        model_format.encode("<|channel|>final<|message|>")
        if name == "gpt-oss"
        else model_format.encode("<think>x</think>")
    )
    tokens = (
        prefix
        + model_format.encode("Grüße 𒐫!")
        + model_format.encode("<|return|>" if name == "gpt-oss" else "<|im_end|>")
    )
    logprobs = [
        Logprob(token=model_format.decode_token(token)[0], logprob=-float(index)) for index, token in enumerate(tokens)
    ]
    for cuts in ([], range(len(tokens)), [len(prefix) + 3]):
        reader = model_format.create_reader(parser_helpers.RenderedPrompt((), ""), parser_helpers.build_prompt_input())
        segments = []
        for start, end in itertools.pairwise([0, *cuts, len(tokens)]):
            segments += reader.feed(tokens[start:end], logprobs[start:end])
        merged = parser_helpers.merge_segments([*segments, *reader.finish(natural=True)])
        text_segment = next(segment for segment in merged if isinstance(segment, Say))
        assert text_segment.text == "Grüße 𒐫!"
        assert [entry.logprob.logprob for entry in text_segment.logprobs] == [
            -float(n) for n in range(len(prefix), len(tokens) - 1)
        ]
        offsets = [entry.offset for entry in text_segment.logprobs]
        assert offsets == sorted(offsets) and offsets[0] == 0 and offsets[-1] == 7
        assert all(
            text_segment.text[entry.offset :].startswith(entry.logprob.token)
            for entry in text_segment.logprobs
            if "�" not in entry.logprob.token
        )


def test_token_that_begins_in_a_marker_has_no_logprob() -> None:
    model_format = parser_helpers.load_byte_format("hermes")
    tokens = model_format.encode("</think>Hi")
    reader = model_format.create_reader(
        parser_helpers.RenderedPrompt((), "", in_reasoning=True), parser_helpers.build_prompt_input()
    )
    segments = reader.feed(tokens, [Logprob(token="", logprob=-1.0)] * len(tokens)) + reader.finish(natural=True)
    assert isinstance(segments[0], Say) and [entry.offset for entry in segments[0].logprobs] == [0, 1]


def test_logprobs_of_held_back_text_take_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Held-back text can be 100,000 tokens long. The offset of each token is not counted from the start again."""
    length, scanned_chars = 2000, 0
    original_text = MarkerAlphabet.original_text

    def counting_original_text(self: MarkerAlphabet, text: str) -> str:
        nonlocal scanned_chars
        scanned_chars += len(text)
        return original_text(self, text)

    monkeypatch.setattr(MarkerAlphabet, "original_text", counting_original_text)
    model_format = parser_helpers.load_byte_format("plain")
    reader = model_format.create_reader(parser_helpers.RenderedPrompt((), ""), parser_helpers.build_prompt_input())
    (segment,) = reader.feed(model_format.encode("x" * length), [Logprob(token="x", logprob=-1.0)] * length)
    assert isinstance(segment, Say) and [entry.offset for entry in segment.logprobs] == list(range(length))
    assert scanned_chars < 10 * length


def test_reasoning_tokens_are_counted_by_their_start() -> None:
    model_format = parser_helpers.load_token_format("hermes")
    _, reader = parser_helpers.parse_tokens(model_format, model_format.encode("<think>abc</think>de"))
    assert reader.reasoning_tokens == 3


def test_byte_level_tokenizer() -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={character: token for token, character in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_end|>"])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False, special=False)])
    vocabulary = TokenizerVocabulary(tokenizer)
    text = "<think>é €\n😀 a<|im_end|>"
    tokens = vocabulary.encode(text)
    assert b"".join(vocabulary.token_bytes(token) or b"" for token in tokens) == text.encode()
    assert vocabulary.added_tokens == {"<|im_end|>": 256, "<think>": 257} and vocabulary.special_ids == {256}
    assert vocabulary.token_bytes(9999) is None and vocabulary.token_bytes(-1) is None


def test_sentencepiece_tokenizer() -> None:
    pieces = [("<unk>", 0.0), ("\u2581a", -1.0), ("b", -1.0), ("<0xE2>", -2.0), ("<0x82>", -2.0), ("<0xAC>", -2.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    vocabulary = TokenizerVocabulary(tokenizer)
    assert b"".join(vocabulary.token_bytes(token) or b"" for token in (1, 2, 3, 4, 5)).decode() == " ab€"


@pytest.mark.parametrize("name", parser_helpers.TRANSCRIPT_DIALECTS)
def test_format_decodes_its_tokens(name: str) -> None:
    model_format = parser_helpers.load_token_format(name)
    tokens = model_format.encode("Hi €<|im_end|>")
    assert model_format.decode(tokens) == "Hi €<|im_end|>"
    assert b"".join(model_format.decode_token(token)[1] for token in tokens).decode() == "Hi €<|im_end|>"
    assert model_format.decode_token(10**7) == ("", b"")
    assert name in {model_format.name, *DIALECTS} and model_format.stop_ids


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["integer", "null"]}, {"integer", "null"}),
        ({"anyOf": [{"type": "string"}, {"$ref": "#/$defs/d"}]}, {"string", "object"}),
        ({"$ref": "#/$defs/loop"}, set()),
        ({"$ref": "#/nowhere/x"}, set()),
        ({"$ref": "https://example.org/x"}, set()),
        ({"enum": ["a", 1, True, None, 1.5]}, {"string", "integer", "boolean", "null", "number"}),
        ({"const": []}, {"array"}),
        ({"properties": {}}, {"object"}),
        ({"items": {}}, {"array"}),
        ({"type": "odd"}, set()),
        ({"anyOf": 3, "type": 4, "enum": "x"}, set()),
        (True, set()),
        (None, set()),
    ],
)
def test_allowed_types_of_a_schema(schema: object, expected: set[str]) -> None:
    assert allowed_types(schema, {"$defs": {"d": {"type": "object"}, "loop": {"$ref": "#/$defs/loop"}}}) == expected


@pytest.mark.parametrize(
    ("text", "allowed", "expected"),
    [
        ("1", "integer", "1"),
        (" 1.50 ", "number", "1.50"),
        ("1e5", "integer", "1e5"),
        ("007", "integer", '"007"'),
        ("NaN", "number", '"NaN"'),
        ("Infinity", "number", '"Infinity"'),
        ("True", "boolean", "true"),
        ("1", "boolean", '"1"'),
        ("None", "null", "null"),
        ("null", "object", '"null"'),
        ('{"a" : 1}', "object", '{"a" : 1}'),
        ("{'a': (1, None)}", "object", '{"a": [1, null]}'),
        ("[1,]", "array", "[1]"),
        ("[" * 5000, "array", '"' + "[" * 5000 + '"'),
        ("{1, 2}", "object", '"{1, 2}"'),
        ("[1e999]", "array", "[1e999]"),
        ('"x"', "integer", '"\\"x\\""'),
        ("", "integer", '""'),
    ],
)
def test_cast_value(text: str, allowed: str, expected: str) -> None:
    assert cast_value(text, frozenset({allowed})) == expected


def test_values_that_must_be_strings_can_stream() -> None:
    assert can_stream_as_string(frozenset(), "1") and can_stream_as_string(frozenset({"string"}), "{")
    assert can_stream_as_string(frozenset({"string", "null"}), "x") and not can_stream_as_string(
        frozenset({"string", "null"}), "n"
    )
    assert not can_stream_as_string(frozenset({"integer"}), "x")


@pytest.mark.parametrize("unknown_tokens", [[], [10**6], [-1], [2**40], [10**6, 199_999, -1]])
def test_decoding_many_tokens_joins_the_bytes_of_each(unknown_tokens: list[int]) -> None:
    model_format = parser_helpers.load_token_format("gpt-oss")
    tokens = model_format.encode("<|start|>user<|message|>Zażółć 😀<|end|>")
    tokens = [*tokens[:9], *unknown_tokens, *tokens[9:], tokens[-3]]  # ends with an incomplete character
    assert model_format.decode(tokens) == b"".join(model_format.decode_token(token)[1] for token in tokens).decode(
        "utf-8", "replace"
    )
