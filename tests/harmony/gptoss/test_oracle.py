"""The gpt-oss parser against that of the openai_harmony library: both give the same messages for well-formed streams."""

import random
from typing import Any

import pytest
from openai_harmony import Role, StreamableParser

from antiphon.harmony.gptoss.format import load_encoding
from antiphon.state.segments import Arguments, Call, Say, Segment, Think
from tests.harmony import parser_helpers

MESSAGE_TEXTS = ["Hello!", "Grüße, 世界 👩‍🚀", "a\n\n  b", "𝒳𒐫 x", "1 < 2 and <think>", "- one\n- two\n", "é" * 30]
CALL_ARGUMENTS = ['{"a": 1}', '{"a": [1, {"b": "é\\n😀"}]}', "{}", '{ "a" :1.50 }']


def parse_with_library(tokens: list[int]) -> list[tuple[str, str, str]]:
    """Returns (channel, recipient, text) of each message, as the library parses it."""
    parser = StreamableParser(load_encoding(), Role.ASSISTANT)
    for token in tokens:
        parser.process(token)
    parser.process_eos()
    return [
        (message.channel or "", message.recipient or "", "".join(part.text for part in message.content))
        for message in parser.messages
    ]


def convert_to_messages(segments: list[Segment]) -> list[tuple[str, str, str]]:
    """Returns (channel, recipient, text) of each message in our segments."""
    messages: list[tuple[str, str, str]] = []
    for segment in segments:
        match segment:
            case Think(text):
                messages.append(("analysis", "", text))
            case Say(text, phase):
                messages.append(({"final_answer": "final"}.get(phase or "", phase or ""), "", text))
            case Call():
                messages.append(
                    (
                        "commentary",
                        f"functions.{parser_helpers.TOOLS.model_name_of(segment.name, segment.namespace)}",
                        "",
                    )
                )
            case Arguments(text):
                messages[-1] = (*messages[-1][:2], text)
    return messages


def is_well_formed(case: dict[str, Any]) -> bool:
    """Tells whether a transcript is complete and free of tool restrictions and headers that the library rejects."""
    complete = case.get("natural", True) and case["text"] and "tool_choice" not in case
    return bool(complete) and not case["name"].startswith("malformed") and "spelled" not in case["name"]


@pytest.mark.parametrize(
    "case", list(filter(is_well_formed, parser_helpers.load_transcripts("gpt-oss"))), ids=lambda case: case["name"]
)
def test_transcripts_parse_as_in_openai_harmony(case: dict[str, Any]) -> None:
    model_format = parser_helpers.load_token_format("gpt-oss")
    tokens = model_format.encode(case["text"])
    assert convert_to_messages(parser_helpers.parse_tokens(model_format, tokens)[0]) == parse_with_library(tokens)


def test_random_streams_parse_as_in_openai_harmony() -> None:
    rng = random.Random("oracle")
    model_format = parser_helpers.load_token_format("gpt-oss")
    for _ in range(parser_helpers.RANDOM_OUTPUTS):
        tokens = model_format.encode("<|start|>assistant".join(_draw_message(rng) for _ in range(rng.randint(1, 6))))
        assert convert_to_messages(
            parser_helpers.parse_tokens(model_format, tokens, parser_helpers.draw_cuts(len(tokens), rng))[0]
        ) == parse_with_library(tokens)


def _draw_message(rng: random.Random) -> str:
    if rng.random() < 0.6:
        channel = rng.choice(["analysis", "commentary", "final"])
        return f"<|channel|>{channel}<|message|>{rng.choice(MESSAGE_TEXTS)}<|end|>"
    recipient = f" to=functions.{rng.choice(['add', 'write', 'now', 'agents__spawn'])}"
    content_type = rng.choice(["", " <|constrain|>json", "<|constrain|>json", " json"])
    header = rng.choice(
        [f"{recipient}<|channel|>commentary{content_type}", f"<|channel|>commentary{recipient}{content_type}"]
    )
    return f"{header}<|message|>{rng.choice(CALL_ARGUMENTS)}<|call|>"
