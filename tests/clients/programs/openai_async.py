"""Asynchronous calls in turns of openai for Python: the conversation continues, and the output comes two turns later.

The program is run as `python PROGRAM URL MODEL`. It prints {"stored": [[...]], "sent": [[...]]}: for each response of a
conversation its items, as type or text and `async`, with earlier turns stored by the server or sent by the client.
"""

import json
import sys
from typing import Any

from openai import OpenAI

CLIENT = OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "Tells the weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
    "async": True,
}
PROMPTS = ["How is the weather?", "Take your time."]


def describe_response(response: Any) -> list[Any]:
    """Returns type or text of each item, and whether it is an asynchronous call."""
    return [
        [item.type, item.async_] if item.type == "function_call" else item.content[0].text for item in response.output
    ]


def run_turns(store: bool) -> list[Any]:
    """Runs three turns, of which the last brings the output."""
    turns: list[Any] = [{"role": "user", "content": prompt} for prompt in PROMPTS]
    history: list[Any] = []
    previous, call_id, described = None, "", []
    for turn in [*turns, None]:
        sent = turn or {"type": "function_call_output", "call_id": call_id, "output": "rain"}
        history.append(sent)
        continued: dict[str, Any] = {"previous_response_id": previous, "input": [sent]} if store else {"input": history}
        with CLIENT.responses.stream(model=sys.argv[2], tools=[WEATHER], store=store, **continued) as stream:
            response = stream.get_final_response()
        described.append(describe_response(response))
        previous = response.id
        history += response.output
        call_id = call_id or response.output[0].call_id
    return described


json.dump({"stored": run_turns(store=True), "sent": run_turns(store=False)}, sys.stdout)
