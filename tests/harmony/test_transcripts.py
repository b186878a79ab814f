"""What models write, and what is read of it: the same in every cut, over every vocabulary, with every character counted."""

import random
from collections.abc import Sequence
from typing import Any

import pytest

from antiphon.harmony.detect import DIALECTS
from antiphon.harmony.prompt.jinja import ChatTemplate
from antiphon.harmony.template_format import TemplateFormat
from antiphon.harmony.tokens.detokenizer import REPLACEMENT_CHARACTER
from tests.harmony import parser_helpers


@pytest.mark.parametrize(("name", "case"), parser_helpers.every_case())
def test_a_transcript_is_read_as_it_says(name: str, case: dict[str, Any]) -> None:
    for ready in _formats(name, case):
        said, _ = parser_helpers.read(ready, ready.encode(case["text"]), **parser_helpers.options(case))
        assert parser_helpers.lines(said) == case["says"]


@pytest.mark.parametrize(("name", "case"), parser_helpers.every_case())
def test_every_cut_reads_the_same(name: str, case: dict[str, Any]) -> None:
    ready = _formats(name, case)[0]
    tokens, options = ready.encode(case["text"]), parser_helpers.options(case)
    whole, reader = parser_helpers.read(ready, tokens, **options)
    chance = random.Random(case["name"])
    ways = [range(len(tokens)), *([cut] for cut in range(len(tokens)))]
    ways += [parser_helpers.random_cuts(len(tokens), chance) for _ in range(parser_helpers.CUTS)]
    for cuts in ways:
        said, again = parser_helpers.read(ready, tokens, cuts, **options)
        assert said == whole
        assert again.reasoning_tokens == reader.reasoning_tokens


class Shards:
    """A vocabulary made for one text: its tokens are random runs of bytes, which respect no character and no marker."""

    def __init__(self) -> None:
        self.added_tokens = {"<|im_start|>": 0, "<|im_end|>": 1}
        self.special_ids = frozenset({0, 1})
        self._pieces = [b"<|im_start|>", b"<|im_end|>"]

    def token_bytes(self, token: int) -> bytes | None:
        return self._pieces[token] if token < len(self._pieces) else None

    def encode(self, text: str) -> list[int]:
        raise NotImplementedError

    def cut(self, text: str, chance: random.Random) -> list[int]:
        raw, tokens, at = text.encode(), [], 0
        while at < len(raw):
            special = next(
                (token for word, token in self.added_tokens.items() if raw.startswith(word.encode(), at)), None
            )
            end = at + chance.randint(1, 7)
            later = [place for word in self.added_tokens if (place := raw.find(word.encode(), at)) > at]
            if special is None:
                end = min(end, *later) if later else end
                special = len(self._pieces)
                self._pieces.append(raw[at:end])
            else:
                end = at + len(self._pieces[special])
            tokens.append(special)
            at = end
        return tokens


@pytest.mark.parametrize(
    ("name", "case"), [case for case in parser_helpers.every_case() if case.values[0] != "gpt-oss"]
)
def test_tokens_that_respect_no_boundary(name: str, case: dict[str, Any]) -> None:
    if case.get("markers") == "tokens":
        pytest.skip("only where its markers are tokens")
    chance = random.Random(case["name"])
    for _ in range(max(5, parser_helpers.CUTS // 20)):
        shards = Shards()
        ready = TemplateFormat(DIALECTS[name], shards, ChatTemplate(""))
        tokens = shards.cut(case["text"], chance)
        said, _ = parser_helpers.read(ready, tokens, range(len(tokens)), **parser_helpers.options(case))
        assert parser_helpers.lines(said) == case["says"]


@pytest.mark.parametrize("name", parser_helpers.NAMES)
def test_cut_anywhere_what_was_said_is_never_taken_back(name: str) -> None:
    """A whole call is said of no beginning of an answer unless it is whole there; and what is said only grows."""
    for case in parser_helpers.cases(name):
        ready = _formats(name, case)[0]
        tokens, options = ready.encode(case["text"]), {**parser_helpers.options(case), "natural": False}
        full: Any = ready.create_reader(parser_helpers.RenderedPrompt((), "", options["thinking"]), options["talk"])
        streamed: list[Any] = []
        for place in range(len(tokens)):
            streamed += full.feed(tokens[place : place + 1])
            cut, _ = parser_helpers.read(ready, tokens[: place + 1], **options)
            _begins(parser_helpers.lines(parser_helpers.merge(streamed)), parser_helpers.lines(cut))


def _begins(before: Sequence[str], after: Sequence[str]) -> None:
    assert len(before) <= len(after)
    assert list(before[:-1]) == list(after[: max(len(before) - 1, 0)])
    if before:
        assert after[len(before) - 1].startswith(before[-1].removesuffix('"'))


@pytest.mark.parametrize("name", parser_helpers.NAMES)
def test_half_a_character_is_replaced_once(name: str) -> None:
    ready = parser_helpers.tokens_format(name)
    head = ready.encode("<|channel|>final<|message|>" if name == "gpt-oss" else "")
    face = ready.encode("𒐫")  # several tokens in every vocabulary
    said, _ = parser_helpers.read(ready, head + face[:1])
    assert parser_helpers.lines(said)[0].endswith(f'"{REPLACEMENT_CHARACTER}"')


@pytest.mark.parametrize("name", parser_helpers.NAMES)
def test_unknown_ids_are_no_text(name: str) -> None:
    ready = parser_helpers.tokens_format(name)
    head = ready.encode("<|channel|>final<|message|>" if name == "gpt-oss" else "")
    said, _ = parser_helpers.read(ready, [*head, 10**6, *ready.encode("Hi"), 2**40, *ready.encode(" you")])
    assert parser_helpers.lines(said)[0].endswith('"Hi you"')


def _formats(name: str, case: dict[str, Any]) -> list[Any]:
    which = case.get("markers")
    return [parser_helpers.letters_format(name)] if which == "letters" else parser_helpers.formats(name)
