"""Transcripts of model output: the same segments for any split and any vocabulary, with every character counted."""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from antiphon.harmony.detection.detect import DIALECTS
from antiphon.harmony.detection.template_format import TemplateFormat
from antiphon.harmony.prompt.templates.jinja import ChatTemplate
from antiphon.harmony.tokens.detokenizer import REPLACEMENT_CHARACTER
from tests.harmony import parser_helpers


@pytest.mark.parametrize(("name", "case"), parser_helpers.list_transcript_params())
def test_transcript_gives_the_expected_segments(name: str, case: dict[str, Any]) -> None:
    for model_format in _load_case_formats(name, case):
        segments, _ = parser_helpers.parse_tokens(
            model_format, model_format.encode(case["text"]), **parser_helpers.parse_options(case)
        )
        assert parser_helpers.format_segments(segments) == case["says"]


@pytest.mark.parametrize(("name", "case"), parser_helpers.list_transcript_params())
def test_any_split_gives_the_same_segments(name: str, case: dict[str, Any]) -> None:
    model_format = _load_case_formats(name, case)[0]
    tokens, options = model_format.encode(case["text"]), parser_helpers.parse_options(case)
    expected, reader = parser_helpers.parse_tokens(model_format, tokens, **options)
    rng = random.Random(case["name"])
    splits = [range(len(tokens)), *([cut] for cut in range(len(tokens)))]
    splits += [parser_helpers.draw_cuts(len(tokens), rng) for _ in range(parser_helpers.RANDOM_SPLITS)]
    for cuts in splits:
        segments, other_reader = parser_helpers.parse_tokens(model_format, tokens, cuts, **options)
        assert segments == expected
        assert other_reader.reasoning_tokens == reader.reasoning_tokens


class RandomPieceVocabulary:
    """A vocabulary made for one text. Its tokens are random runs of bytes that cross character and marker boundaries."""

    def __init__(self) -> None:
        self.added_tokens = {"<|im_start|>": 0, "<|im_end|>": 1}
        self.special_ids = frozenset({0, 1})
        self._pieces = [b"<|im_start|>", b"<|im_end|>"]

    def token_bytes(self, token: int) -> bytes | None:
        return self._pieces[token] if token < len(self._pieces) else None

    def encode(self, text: str) -> list[int]:
        raise NotImplementedError

    def tokenize(self, text: str, rng: random.Random) -> list[int]:
        data, tokens, index = text.encode(), [], 0
        while index < len(data):
            token = next(
                (token for marker, token in self.added_tokens.items() if data.startswith(marker.encode(), index)), None
            )
            end = index + rng.randint(1, 7)
            marker_indices = [
                marker_index
                for marker in self.added_tokens
                if (marker_index := data.find(marker.encode(), index)) > index
            ]
            if token is None:
                end = min(end, *marker_indices) if marker_indices else end
                token = len(self._pieces)
                self._pieces.append(data[index:end])
            else:
                end = index + len(self._pieces[token])
            tokens.append(token)
            index = end
        return tokens


@pytest.mark.parametrize(
    ("name", "case"), [case for case in parser_helpers.list_transcript_params() if case.values[0] != "gpt-oss"]
)
def test_tokens_across_character_and_marker_boundaries(name: str, case: dict[str, Any]) -> None:
    if case.get("markers") == "tokens":
        pytest.skip("the transcript requires markers as tokens")
    rng = random.Random(case["name"])
    for _ in range(max(5, parser_helpers.RANDOM_SPLITS // 20)):
        vocabulary = RandomPieceVocabulary()
        model_format = TemplateFormat(DIALECTS[name], vocabulary, ChatTemplate(""))
        tokens = vocabulary.tokenize(case["text"], rng)
        segments, _ = parser_helpers.parse_tokens(
            model_format, tokens, range(len(tokens)), **parser_helpers.parse_options(case)
        )
        assert parser_helpers.format_segments(segments) == case["says"]


@pytest.mark.parametrize("name", parser_helpers.TRANSCRIPT_DIALECTS)
def test_streamed_segments_are_never_revised(name: str) -> None:
    """Segments of a longer prefix extend those of a shorter one, and a call is closed only where it is complete."""
    for case in parser_helpers.load_transcripts(name):
        model_format = _load_case_formats(name, case)[0]
        tokens, options = model_format.encode(case["text"]), {**parser_helpers.parse_options(case), "natural": False}
        reader: Any = model_format.create_reader(
            parser_helpers.RenderedPrompt((), "", options["thinking"]), options["prompt_input"]
        )
        streamed: list[Any] = []
        for index in range(len(tokens)):
            streamed += reader.feed(tokens[index : index + 1])
            truncated, _ = parser_helpers.parse_tokens(model_format, tokens[: index + 1], **options)
            _assert_starts_with(
                parser_helpers.format_segments(parser_helpers.merge_segments(streamed)),
                parser_helpers.format_segments(truncated),
            )


def _assert_starts_with(before: Sequence[str], after: Sequence[str]) -> None:
    assert len(before) <= len(after)
    assert list(before[:-1]) == list(after[: max(len(before) - 1, 0)])
    if before:
        assert after[len(before) - 1].startswith(before[-1].removesuffix('"'))


@pytest.mark.parametrize("name", parser_helpers.TRANSCRIPT_DIALECTS)
def test_incomplete_character_is_replaced_once(name: str) -> None:
    model_format = parser_helpers.load_token_format(name)
    prefix = model_format.encode("<|channel|>final<|message|>" if name == "gpt-oss" else "")
    character = model_format.encode("𒐫")  # several tokens in every vocabulary
    segments, _ = parser_helpers.parse_tokens(model_format, prefix + character[:1])
    assert parser_helpers.format_segments(segments)[0].endswith(f'"{REPLACEMENT_CHARACTER}"')


@pytest.mark.parametrize("name", parser_helpers.TRANSCRIPT_DIALECTS)
def test_unknown_token_ids_give_no_text(name: str) -> None:
    model_format = parser_helpers.load_token_format(name)
    prefix = model_format.encode("<|channel|>final<|message|>" if name == "gpt-oss" else "")
    segments, _ = parser_helpers.parse_tokens(
        model_format, [*prefix, 10**6, *model_format.encode("Hi"), 2**40, *model_format.encode(" you")]
    )
    assert parser_helpers.format_segments(segments)[0].endswith('"Hi you"')


def _load_case_formats(name: str, case: dict[str, Any]) -> list[Any]:
    markers = case.get("markers")
    return [parser_helpers.load_byte_format(name)] if markers == "letters" else parser_helpers.load_formats(name)
