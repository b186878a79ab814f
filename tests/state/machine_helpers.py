"""Helpers for driving the machine: a machine with counted ids, and letters as things to do to it."""

import json
from collections.abc import Callable

from antiphon.events.base import Event
from antiphon.events.items import Compaction, UrlCitation
from antiphon.events.response import Response, Usage
from antiphon.events.sse import encode_event
from antiphon.state.drafts import ReasoningOutput, Seal
from antiphon.state.machine import Machine
from antiphon.state.segments import Arguments, Call, Cite, Close, CompleteItem, Refuse, Say, Think

Step = Callable[[Machine], list[Event]]

CITATION = UrlCitation(url="http://example.com", title="Example", start_index=0, end_index=1)
HEAD = Response(id="resp_1", created_at=100, model="m", text={"format": {"type": "text"}}, metadata={})
USAGE = Usage(input_tokens=3, output_tokens=4, total_tokens=7)


class Counted:
    """Ids in order; a copy of it counts on by itself."""

    def __init__(self) -> None:
        self._next = 0

    def __call__(self, prefix: str) -> str:
        self._next += 1
        return f"{prefix}_{self._next - 1}"


def machine(reasoning_as: ReasoningOutput = "content", seal: Seal | None = None) -> Machine:
    return Machine(
        HEAD, new_id=Counted(), clock=lambda: 200, usage=lambda: USAGE,
        reasoning_output=reasoning_as, seal=seal,
    )  # fmt: skip


MODEL: dict[str, Step] = {
    "think": lambda m: m.feed(Think("a")),
    "think blank": lambda m: m.feed(Think(" ")),
    "say": lambda m: m.feed(Say("b")),
    "say blank": lambda m: m.feed(Say("\n")),
    "refuse": lambda m: m.feed(Refuse("c")),
    "refuse blank": lambda m: m.feed(Refuse("\t")),
    "cite": lambda m: m.feed(Cite(CITATION)),
    "call": lambda m: m.feed(Call("f")),
    "custom": lambda m: m.feed(Call("g", kind="custom", namespace="n")),
    "arguments": lambda m: m.feed(Arguments("{")),
    "close": lambda m: m.feed(Close()),
    "complete_item": lambda m: m.feed(CompleteItem(Compaction(id="", encrypted_content="x"))),
}
"""What a model may say, one letter each."""

ENDINGS: dict[str, Step] = {
    "stop": lambda m: m.stop(),
    "cut": lambda m: m.cut(),
    "fail": lambda m: m.fail("server_error", "broken"),
    "cancel": lambda m: m.cancel(),
}

LIFECYCLE: dict[str, Step] = {
    "queue": lambda m: m.queue(),
    "begin": lambda m: m.begin(),
    "keepalive": lambda m: m.keepalive(),
}

EVERYTHING = MODEL | ENDINGS | LIFECYCLE


def plain(events: list[Event]) -> list[dict[str, object]]:
    """The events as the wire has them."""
    return [json.loads(encode_event(event)) for event in events]
