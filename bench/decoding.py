"""Time to read a long request, from bytes to the turn's specification: `python -m bench.decoding`.

The requests have a thousand items or messages: turns of an agent, with calls, outputs and texts in parts. Printed are
milliseconds of CPU time, the medians over rounds that alternate between the APIs.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import msgspec

from antiphon.app.requests.chat.request import read_chat_request
from antiphon.app.requests.json_body import parse_object
from antiphon.app.requests.messages.request import read_messages_request
from antiphon.app.requests.responses.request import read_responses_request
from bench import scripted_server

NUM_TURNS = 250
"""Turns of four items or messages each."""
ROUNDS = 41


def make_bodies() -> dict[str, bytes]:
    """Returns a request of each API with the same conversation of an agent."""
    items: list[Any] = []
    chat: list[Any] = []
    messages: list[Any] = []
    for turn in range(NUM_TURNS):
        ask, call_id = f"Read file {turn}.", f"call_{turn}"
        arguments, text = f'{{"path": "src/{turn}.py"}}', "def answer() -> int:\n    return 42\n" * 8
        parts = [{"type": "output_text", "text": f"File {turn} is fine.", "annotations": [], "logprobs": None}]
        items += [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": ask}]},
            {
                "type": "function_call",
                "call_id": call_id,
                "name": "read",
                "arguments": arguments,
                "status": "completed",
            },
            {"type": "function_call_output", "call_id": call_id, "output": text},
            {"type": "message", "role": "assistant", "content": parts, "status": "completed"},
        ]
        function = {"name": "read", "arguments": arguments}
        chat += [
            {"role": "user", "content": [{"type": "text", "text": ask}]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": call_id, "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": call_id, "content": text},
            {"role": "assistant", "content": f"File {turn} is fine.", "refusal": None},
        ]
        use = {"type": "tool_use", "id": call_id, "name": "read", "input": {"path": f"src/{turn}.py"}}
        result = {"type": "tool_result", "tool_use_id": call_id, "content": [{"type": "text", "text": text}]}
        messages += [
            {"role": "user", "content": ask},
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]},
            {"role": "assistant", "content": [{"type": "text", "text": f"File {turn} is fine."}]},
        ]
    model = {"model": "scripted"}
    last = {"role": "user", "content": "Go on."}
    return {
        "Responses": msgspec.json.encode({**model, "input": items}),
        "Chat Completions": msgspec.json.encode({**model, "messages": chat}),
        "Messages": msgspec.json.encode({**model, "messages": [*messages, last], "max_tokens": 100}),
    }


def main() -> None:
    """Prints the times."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    registry = scripted_server.build_registry([(1, 1)])
    readers: dict[str, Callable[[Any], Any]] = {
        "Responses": lambda body: read_responses_request(body, registry),
        "Chat Completions": lambda body: read_chat_request(body, registry),
        "Messages": lambda body: read_messages_request(body, registry, lambda _: None),
    }
    bodies, times = make_bodies(), {name: list[float]() for name in readers}
    for _ in range(ROUNDS):
        for name, read in readers.items():
            started = time.process_time()
            read(parse_object(bodies[name]))
            times[name].append((time.process_time() - started) * 1000)
    for name, samples in times.items():
        print(f"{name:18} {len(bodies[name]) / 1024:7.0f} KiB {statistics.median(samples):7.2f} ms")


if __name__ == "__main__":
    main()
