"""From token ids to text: whole characters, the place of every token, and what the two vocabularies know."""

import itertools
import random

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from antiphon.events.items import Logprob
from antiphon.harmony.detect import DIALECTS
from antiphon.harmony.parsing.schema_values import allowed_types, can_stream_as_string, cast_value
from antiphon.harmony.tokens.detokenizer import Detokenizer, MarkerAlphabet
from antiphon.harmony.tokens.vocabulary import ByteVocabulary, TokenizerVocabulary
from antiphon.state.segments import Say
from tests.harmony import parser_helpers


def alphabet() -> MarkerAlphabet:
    return MarkerAlphabet(ByteVocabulary(("<think>",), ("<|end|>",)), ("<think>",))


def test_bytes_decode_as_python_decodes_them_in_every_cut() -> None:
    chance = random.Random("bytes")
    for _ in range(parser_helpers.SOUPS * 5):
        raw = bytes(chance.choices(b"A\xe2\x82\xac\xf0\x9f\x98\x80\xed\xa0\xff\xc3\xa9", k=chance.randint(0, 12)))
        whole = Detokenizer(alphabet())
        text = whole.feed(list(raw))[0] + whole.finish()
        single = Detokenizer(alphabet())
        assert (
            "".join([single.feed([byte])[0] for byte in raw]) + single.finish()
            == text
            == raw.decode("utf-8", "replace")
        )


def test_a_token_begins_at_the_character_that_holds_its_first_byte() -> None:
    euro = list("€".encode())
    text, starts = Detokenizer(alphabet()).feed([65, *euro, 66, euro[0], 66, 256, euro[0], 257, 67])
    assert starts == [0, 1, 1, 1, 2, 3, 4, 5, 6, 7, 8]
    assert text[:5] == "A€B�B" and text[6] == "�" and text[8] == "C"


@pytest.mark.parametrize("name", ["hermes", "gpt-oss"])
def test_log_probabilities_stand_where_their_tokens_begin(name: str) -> None:
    ready = parser_helpers.tokens_format(name)
    head = ready.encode("<|channel|>final<|message|>") if name == "gpt-oss" else ready.encode("<think>x</think>")
    tokens = head + ready.encode("Grüße 𒐫!") + ready.encode("<|return|>" if name == "gpt-oss" else "<|im_end|>")
    scores = [Logprob(token=ready.decode_token(token)[0], logprob=-float(place)) for place, token in enumerate(tokens)]
    for cuts in ([], range(len(tokens)), [len(head) + 3]):
        reader = ready.create_reader(parser_helpers.RenderedPrompt((), ""), parser_helpers.conversation())
        said = []
        for start, end in itertools.pairwise([0, *cuts, len(tokens)]):
            said += reader.feed(tokens[start:end], scores[start:end])
        merged = parser_helpers.merge([*said, *reader.finish(natural=True)])
        say = next(segment for segment in merged if isinstance(segment, Say))
        assert say.text == "Grüße 𒐫!"
        assert [one.logprob.logprob for one in say.logprobs] == [-float(n) for n in range(len(head), len(tokens) - 1)]
        places = [one.offset for one in say.logprobs]
        assert places == sorted(places) and places[0] == 0 and places[-1] == 7
        assert all(
            say.text[one.offset :].startswith(one.logprob.token) for one in say.logprobs if "�" not in one.logprob.token
        )


def test_a_token_that_begins_in_a_marker_has_no_entry() -> None:
    ready = parser_helpers.letters_format("hermes")
    tokens = ready.encode("</think>Hi")
    reader = ready.create_reader(
        parser_helpers.RenderedPrompt((), "", in_reasoning=True), parser_helpers.conversation()
    )
    said = reader.feed(tokens, [Logprob(token="", logprob=-1.0)] * len(tokens)) + reader.finish(natural=True)
    assert isinstance(said[0], Say) and [one.offset for one in said[0].logprobs] == [0, 1]


def test_a_text_that_was_held_back_is_scored_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that did not begin may be a hundred thousand tokens: where each stands is not counted from the start."""
    length, seen = 2000, 0
    spelled = MarkerAlphabet.original_text

    def written(self: MarkerAlphabet, text: str) -> str:
        nonlocal seen
        seen += len(text)
        return spelled(self, text)

    monkeypatch.setattr(MarkerAlphabet, "original_text", written)
    ready = parser_helpers.letters_format("plain")
    reader = ready.create_reader(parser_helpers.RenderedPrompt((), ""), parser_helpers.conversation())
    (said,) = reader.feed(ready.encode("x" * length), [Logprob(token="x", logprob=-1.0)] * length)
    assert isinstance(said, Say) and [one.offset for one in said.logprobs] == list(range(length))
    assert seen < 10 * length


def test_reasoning_tokens_are_those_that_begin_in_reasoning() -> None:
    ready = parser_helpers.tokens_format("hermes")
    _, reader = parser_helpers.read(ready, ready.encode("<think>abc</think>de"))
    assert reader.reasoning_tokens == 3


def test_a_byte_level_tokenizer() -> None:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
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


def test_a_tokenizer_in_sentencepiece_spelling() -> None:
    pieces = [("<unk>", 0.0), ("\u2581a", -1.0), ("b", -1.0), ("<0xE2>", -2.0), ("<0x82>", -2.0), ("<0xAC>", -2.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    vocabulary = TokenizerVocabulary(tokenizer)
    assert b"".join(vocabulary.token_bytes(token) or b"" for token in (1, 2, 3, 4, 5)).decode() == " ab€"


@pytest.mark.parametrize("name", parser_helpers.NAMES)
def test_a_format_tells_of_its_tokens(name: str) -> None:
    ready = parser_helpers.tokens_format(name)
    tokens = ready.encode("Hi €<|im_end|>")
    assert ready.decode(tokens) == "Hi €<|im_end|>"
    assert b"".join(ready.decode_token(token)[1] for token in tokens).decode() == "Hi €<|im_end|>"
    assert ready.decode_token(10**7) == ("", b"")
    assert name in {ready.name, *DIALECTS} and ready.stop_ids


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
def test_types_of_a_schema(schema: object, expected: set[str]) -> None:
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
def test_casts(text: str, allowed: str, expected: str) -> None:
    assert cast_value(text, frozenset({allowed})) == expected


def test_what_can_only_be_a_string_is_said_as_it_comes() -> None:
    assert can_stream_as_string(frozenset(), "1") and can_stream_as_string(frozenset({"string"}), "{")
    assert can_stream_as_string(frozenset({"string", "null"}), "x") and not can_stream_as_string(
        frozenset({"string", "null"}), "n"
    )
    assert not can_stream_as_string(frozenset({"integer"}), "x")


@pytest.mark.parametrize("strange", [[], [10**6], [-1], [2**40], [10**6, 199_999, -1]])
def test_the_text_of_many_tokens_is_that_of_each(strange: list[int]) -> None:
    form = parser_helpers.tokens_format("gpt-oss")
    tokens = form.encode("<|start|>user<|message|>Zażółć 😀<|end|>")
    tokens = [*tokens[:9], *strange, *tokens[9:], tokens[-3]]  # half a character at the end of it, too
    assert form.decode(tokens) == b"".join(form.decode_token(token)[1] for token in tokens).decode("utf-8", "replace")
