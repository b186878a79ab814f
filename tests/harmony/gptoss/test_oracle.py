"""gpt-oss against the library's own parser: on streams that are well formed, both read the same."""

import random
from typing import Any

import pytest
from openai_harmony import Role, StreamableParser

from antiphon.harmony.gptoss.format import load_encoding
from antiphon.state.segments import Arguments, Call, Say, Segment, Think
from tests.harmony import parser_helpers

TEXTS = ["Hello!", "Grüße, 世界 👩‍🚀", "a\n\n  b", "𝒳𒐫 x", "1 < 2 and <think>", "- one\n- two\n", "é" * 30]
BODIES = ['{"a": 1}', '{"a": [1, {"b": "é\\n😀"}]}', "{}", '{ "a" :1.50 }']


def oracle(tokens: list[int]) -> list[tuple[str, str, str]]:
    """(channel, recipient, text) of each message, as the library parses them."""
    parser = StreamableParser(load_encoding(), Role.ASSISTANT)
    for token in tokens:
        parser.process(token)
    parser.process_eos()
    return [
        (found.channel or "", found.recipient or "", "".join(part.text for part in found.content))
        for found in parser.messages
    ]


def ours(said: list[Segment]) -> list[tuple[str, str, str]]:
    """The same of our reading."""
    found: list[tuple[str, str, str]] = []
    for segment in said:
        match segment:
            case Think(text):
                found.append(("analysis", "", text))
            case Say(text, phase):
                found.append(({"final_answer": "final"}.get(phase or "", phase or ""), "", text))
            case Call():
                found.append(
                    (
                        "commentary",
                        f"functions.{parser_helpers.TOOLS.model_name_of(segment.name, segment.namespace)}",
                        "",
                    )
                )
            case Arguments(text):
                found[-1] = (*found[-1][:2], text)
    return found


def well_formed(case: dict[str, Any]) -> bool:
    """Not cut, and not about tools in a way of which the library knows nothing."""
    whole = case.get("natural", True) and case["text"] and "tool_choice" not in case
    return bool(whole) and not case["name"].startswith("malformed") and "spelled" not in case["name"]


@pytest.mark.parametrize(
    "case", list(filter(well_formed, parser_helpers.cases("gpt-oss"))), ids=lambda case: case["name"]
)
def test_the_library_reads_well_formed_transcripts_alike(case: dict[str, Any]) -> None:
    ready = parser_helpers.tokens_format("gpt-oss")
    tokens = ready.encode(case["text"])
    assert ours(parser_helpers.read(ready, tokens)[0]) == oracle(tokens)


def test_the_library_reads_random_well_formed_streams_alike() -> None:
    chance = random.Random("oracle")
    ready = parser_helpers.tokens_format("gpt-oss")
    for _ in range(parser_helpers.SOUPS):
        tokens = ready.encode("<|start|>assistant".join(_message(chance) for _ in range(chance.randint(1, 6))))
        assert ours(parser_helpers.read(ready, tokens, parser_helpers.random_cuts(len(tokens), chance))[0]) == oracle(
            tokens
        )


def _message(chance: random.Random) -> str:
    if chance.random() < 0.6:
        channel = chance.choice(["analysis", "commentary", "final"])
        return f"<|channel|>{channel}<|message|>{chance.choice(TEXTS)}<|end|>"
    to = f" to=functions.{chance.choice(['add', 'write', 'now', 'agents__spawn'])}"
    kind = chance.choice(["", " <|constrain|>json", "<|constrain|>json", " json"])
    head = chance.choice([f"{to}<|channel|>commentary{kind}", f"<|channel|>commentary{to}{kind}"])
    return f"{head}<|message|>{chance.choice(BODIES)}<|call|>"
