"""What a message may leave out, and the form of its frames. `test_law_of_apis.py` checks its contents."""

from antiphon.app.errors import ApiError
from tests.snapshots.extra_cases import EXTRA_CASES
from tests.snapshots.run_case import MessageResult, read_message, read_responses
from tests.snapshots.stream_sums import sum_message_events


async def test_omitted_thinking_leaves_only_its_signature() -> None:
    [case] = [case for case in EXTRA_CASES if case.name == "sealed_reasoning"]
    result = await read_message(await read_responses(case), show_thinking=False)
    assert not isinstance(result.reply, ApiError)
    thinking, text = result.reply["content"]
    assert (thinking["type"], thinking["thinking"]) == ("thinking", "")
    assert thinking["signature"] == "<reasoning: A greeting is due.>" and text["text"] == "Hello."
    assert sum_message_events(result.events)[0] == result.reply


def test_frames_have_one_line_of_data() -> None:
    result = MessageResult(b'event: ping\ndata: {"type": "ping"}\n\n', {})
    assert result.events == [{"type": "ping"}]
