"""Every case as a file a person can read aloud, and what must hold of both readings of it."""

import json
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from antiphon.app.errors import ApiError
from tests.invariants import check
from tests.snapshots import event_lines
from tests.snapshots.cases import CASES, Case
from tests.snapshots.run_case import Reading, read_chat, read_responses

FOLDER = Path(__file__).resolve().parents[2] / "snapshots"


class OneFileACase(SingleFileSnapshotExtension):
    """`snapshots/NAME.txt`."""

    _write_mode = WriteMode.TEXT
    file_extension = "txt"
    folder = FOLDER

    @classmethod
    def dirname(cls, *, test_location: object) -> str:
        return str(cls.folder)

    @classmethod
    def matches_test_location(cls, *, test_location: object, snapshot_location: str) -> bool:
        return Path(snapshot_location).parent == cls.folder

    @classmethod
    def get_snapshot_name(cls, *, test_location: object, index: object = 0) -> str:
        return str(index)


@pytest.fixture
def shown(snapshot: SnapshotAssertion) -> SnapshotAssertion:
    return snapshot.use_extension(OneFileACase)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.filterwarnings(r"ignore:\s*Can not relate snapshot name")  # files are named after cases, not after tests
async def test_case(case: Case, shown: SnapshotAssertion) -> None:
    through_responses, through_chat = await read_responses(case), await read_chat(case)
    assert _story(case, through_responses, through_chat) == shown(name=case.name)


def _story(case: Case, first: Reading, second: Reading) -> str:
    lines = [
        f"# {case.name.replace('_', ' ')}" + (f": {case.why}" if case.why else ""),
        f"# the model ({case.dialect}):",
    ]
    lines += [f"#   {json.dumps(said, ensure_ascii=False)}" for said in case.speak] or ["#   nothing"]
    if case.finish != "stop" or case.cancel:
        lines.append("#   and is cancelled" if case.cancel else "#   and is cut by the token limit")
    settings = case.request | case.responses
    lines += [f"# the request: {json.dumps(settings)}"] if settings else []
    names = event_lines.Names()
    lines += ["", "Responses", *(event_lines.event(event, names) for event in first.data), *_error(first)]
    lines += ["", "Chat", *(event_lines.chunk(chunk, names) for chunk in second.data), *_error(second)]
    return "\n".join(lines) + "\n"


def _error(reading: Reading) -> list[str]:
    if not isinstance(reading.whole, ApiError):
        return []
    return [f"HTTP {reading.whole.status} {reading.whole.encoded_body.decode()}"] if not reading.frames else []


@pytest.mark.parametrize("case", [case for case in CASES if not case.refused], ids=lambda case: case.name)
async def test_what_was_streamed_is_what_is_returned(case: Case) -> None:
    reading = await read_responses(case)
    response = check(reading.data)
    assert not isinstance(reading.whole, ApiError)
    assert json.loads(reading.whole) == response == reading.data[-1]["response"]


@pytest.mark.parametrize("case", [case for case in CASES if not case.refused], ids=lambda case: case.name)
async def test_a_whole_chat_reply_is_the_sum_of_its_chunks(case: Case) -> None:
    reading = await read_chat(case)
    chunks = reading.data
    if isinstance(reading.whole, ApiError):
        assert chunks[-1] == json.loads(reading.whole.encoded_body)
        return
    whole = json.loads(reading.whole)
    (choice,) = whole["choices"]
    said = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    assert "".join(one["delta"].get("content") or "" for one in said) == (choice["message"]["content"] or "")
    assert "".join(one["delta"].get("reasoning") or "" for one in said) == choice["message"].get("reasoning", "")
    assert [one["finish_reason"] for one in said if one["finish_reason"]] == [choice["finish_reason"]]
    calls: list[dict[str, str]] = []
    for fragment in (fragment for one in said for fragment in one["delta"].get("tool_calls", [])):
        if "id" in fragment:
            assert fragment["index"] == len(calls), "indices count from 0 by 1"
            calls.append({"id": fragment["id"], "text": ""})
        inner = fragment.get("function") or fragment.get("custom")
        calls[fragment["index"]]["text"] += inner.get("arguments", inner.get("input", ""))
    whole_calls = choice["message"].get("tool_calls", [])
    assert [call["id"] for call in calls] == [call["id"] for call in whole_calls]
    assert [call["text"] for call in calls] == [
        call[call["type"]].get("arguments", call[call["type"]].get("input")) for call in whole_calls
    ]
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == whole["usage"], "usage comes last"


@pytest.mark.parametrize("case", [case for case in CASES if not case.refused], ids=lambda case: case.name)
async def test_both_faces_tell_the_same(case: Case) -> None:
    """Chat from the events is chat from the final object: text, reasoning and calls, in order."""
    first, second = await read_responses(case), await read_chat(case)
    if isinstance(second.whole, ApiError) or "namespaced" in case.name or "max_tool_calls" in case.name:
        return
    output = json.loads(first.whole)["output"]  # type: ignore[arg-type]
    message = json.loads(second.whole)["choices"][0]["message"]
    texts = ["".join(part["text"] for part in item["content"]) for item in output if item["type"] == "message"]
    assert "\n\n".join(texts) == (message["content"] or "")
    thoughts = [part["text"] for item in output if item["type"] == "reasoning" for part in item["content"]]
    assert "".join(thoughts) == message.get("reasoning", "")
    payloads = [item.get("arguments", item.get("input")) for item in output if item["type"].endswith("_call")]
    assert payloads == [
        call[call["type"]].get("arguments", call[call["type"]].get("input")) for call in message.get("tool_calls", [])
    ]


@pytest.mark.parametrize("said_as", ["summary", "both"])
@pytest.mark.parametrize("case", [case for case in CASES if "reasoning" in case.name], ids=lambda case: case.name)
async def test_reasoning_told_as_summaries(case: Case, said_as: str) -> None:
    plain = await read_chat(case)
    reading, folded = await read_responses(case, reasoning_output=said_as), await read_chat(case, reasoning_output=said_as)
    check(reading.data)
    assert not isinstance(plain.whole, ApiError) and not isinstance(folded.whole, ApiError)
    assert json.loads(plain.whole)["choices"] == json.loads(folded.whole)["choices"], "chat does not care"


def test_every_case_has_a_name_of_its_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert {path.stem for path in FOLDER.glob("*.txt")} == {case.name for case in CASES}
