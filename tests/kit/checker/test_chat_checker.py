"""The checker of chat streams and of frames, and the comparison of chat with Responses."""

from typing import Any

import pytest

from antiphon.kit.chat.comparison import compare_chat
from antiphon.kit.chat.stream import check_chat_sse, read_chat_sse
from antiphon.kit.checker.sse import Frame, SseReader
from antiphon.kit.checker.stream import check_sse
from antiphon.kit.findings import FindingList
from tests.kit.checker.chat_mutants import (
    CHAT_MUTANTS,
    LEGAL_CHATS,
    REQUEST,
    ChatMutant,
    build_call_chunks,
    build_chunk,
    build_text_chunks,
    build_usage,
    encode_chat,
)
from tests.kit.checker.frame_mutants import FRAME_MUTANTS, FrameMutant
from tests.kit.checker.legal_streams import LEGAL
from tests.kit.checker.stream_writer import encode_sse


@pytest.mark.parametrize("name", LEGAL_CHATS)
def test_legal_chat_has_no_finding(name: str) -> None:
    build, request = LEGAL_CHATS[name]
    assert [str(finding) for finding in check_chat_sse(encode_chat(build()), request)] == []


@pytest.mark.parametrize("mutant", CHAT_MUTANTS, ids=lambda mutant: mutant.name)
def test_broken_chat_is_found(mutant: ChatMutant) -> None:
    codes = [finding.code for finding in check_chat_sse(mutant.build(), LEGAL_CHATS[mutant.base][1])]
    assert mutant.code in codes, f"found only {codes}"


@pytest.mark.parametrize("mutant", FRAME_MUTANTS, ids=lambda mutant: mutant.name)
def test_broken_frame_is_found(mutant: FrameMutant) -> None:
    codes = [finding.code for finding in check_sse(mutant.build())]
    assert mutant.code in codes, f"found only {codes}"


@pytest.mark.parametrize("name", ["text", "two_calls", "failed"])
def test_frames_do_not_depend_on_the_reads(name: str) -> None:
    data = encode_sse(LEGAL[name]()).replace(b"\n\nevent", b"\n\n: ping\n\nevent", 2)
    whole = list(SseReader(FindingList()).feed(data))
    for size in (1, 2, 7, 100):
        reader = SseReader(FindingList())
        frames: list[Frame] = []
        for start in range(0, len(data), size):
            frames += reader.feed(data[start : start + size])
        assert frames == whole


def _compare(response: dict[str, Any], chunks: list[dict[str, Any]]) -> list[tuple[str, str]]:
    findings = FindingList()
    compare_chat(response, read_chat_sse(encode_chat(chunks), REQUEST), findings)
    return [(finding.code, finding.subject) for finding in findings.list_findings()]


def test_chat_says_what_responses_says() -> None:
    text, calls = LEGAL["text"]()[-1]["response"], LEGAL["function_call"]()[-1]["response"]
    one_call = [*build_call_chunks()[:3], *build_call_chunks()[4:]]
    assert _compare(text, build_text_chunks()) == []
    assert _compare(calls, one_call) == []
    assert _compare(calls, build_call_chunks()) == [("chat-differs", "tool_calls")]
    assert _compare(calls, build_text_chunks()) == [
        ("chat-differs", "content"),
        ("chat-differs", "finish_reason"),
        ("chat-differs", "tool_calls"),
    ]
    assert _compare(text, []) == [("chat-differs", "choices")]


def test_chat_reasoning_refusal_and_usage_are_compared() -> None:
    reasoned = LEGAL["raw_reasoning"]()[-1]["response"]
    start = build_chunk({"role": "assistant", "reasoning_content": "Hm.So."})
    assert _compare(reasoned, [start, *build_text_chunks()[1:]]) == []
    assert _compare(reasoned, [build_chunk({"role": "assistant", "reasoning": "Hm"}), *build_text_chunks()[1:]]) == [
        ("chat-differs", "reasoning")
    ]
    summarised = LEGAL["summarised_reasoning"]()[-1]["response"]
    assert _compare(summarised, [start, *build_text_chunks()[1:]]) == []
    both = LEGAL["both_kinds_of_reasoning"]()[-1]["response"]
    assert _compare(both, [start, *build_text_chunks()[1:]]) == [("chat-differs", "reasoning")]
    silent = LEGAL["text"]()[-1]["response"]
    assert _compare(silent, [start, *build_text_chunks()[1:]]) == [("chat-differs", "reasoning")]
    refused = LEGAL["refusal"]()[-1]["response"]
    assert _compare(refused, build_text_chunks()) == [("chat-differs", "content"), ("chat-differs", "refusal")]
    usage = build_chunk(usage=build_usage() | {"completion_tokens": 7, "total_tokens": 17})
    text = LEGAL["text"]()[-1]["response"]
    assert _compare(text, [*build_text_chunks()[:-1], usage]) == [("chat-usage-differs", "completion_tokens")]
