"""Prints `docs/reference/apis.md`: one model output in all four APIs. `python -m tests.snapshots.api_page > docs/reference/apis.md`."""

import asyncio
import json
import sys
from typing import Any

from antiphon.app.errors import ApiError
from tests.snapshots import event_lines
from tests.snapshots.cases import CASES
from tests.snapshots.run_case import USER_TEXT, read_chat, read_completion, read_message, read_responses

CASE_NAME = "reasoning_text_and_two_calls"
_HEAD = """# One conversation in four APIs

This page is printed by `python -m tests.snapshots.api_page` from a snapshot case, and a test checks that it is up to date. Ids are
numbered, and lines of streams are shortened: `snapshots/` explains the form.

A user says "{user}" to a model with the tools `get_weather` and `run`. The model writes:

```
{output}
```

Every reply below is a fold of the same events. Only `/v1/completions` shows the text as the model wrote it: it has no tools.
"""
_SECTION = """
## {title}

Request:

```json
{request}
```

Stream:

```
{stream}
```

Reply without `stream`:

```json
{reply}
```
"""
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "Responses": ("POST /v1/responses", {"input": USER_TEXT}),
    "Chat": ("POST /v1/chat/completions", {"messages": [{"role": "user", "content": USER_TEXT}]}),
    "Messages": ("POST /v1/messages", {"max_tokens": 4096, "messages": [{"role": "user", "content": USER_TEXT}]}),
    "Completions": ("POST /v1/completions", {"prompt": USER_TEXT, "max_tokens": 4096}),
}
"""Title and request of each API; tools are left out."""
SHOWN_RESPONSE_KEYS = ("id", "object", "status", "output", "usage")


async def render_page() -> str:
    """Returns the text of `docs/reference/apis.md`."""
    [case] = [case for case in CASES if case.name == CASE_NAME]
    responses, chat, completion = await read_responses(case), await read_chat(case), await read_completion(case)
    message = await read_message(responses)
    numbers = event_lines.IdNumbers()
    streams = {
        "Responses": [event_lines.format_event(event, numbers) for event in responses.data],
        "Chat": [event_lines.format_chunk(chunk, numbers) for chunk in chat.data],
        "Messages": [event_lines.format_message_event(event, numbers) for event in message.events],
        "Completions": [_format_completion(chunk) for chunk in completion.data],
    }
    whole_response = _decode(responses.reply)
    replies = {
        "Responses": {key: whole_response[key] for key in SHOWN_RESPONSE_KEYS},
        "Chat": _decode(chat.reply),
        "Messages": message.reply,
        "Completions": _decode(completion.reply),
    }
    page = [_HEAD.format(user=USER_TEXT, output="".join(case.output))]
    for api, (title, fields) in REQUESTS.items():
        page.append(
            _SECTION.format(
                title=title,
                request=json.dumps({"model": "scripted", **fields}, indent=2),
                stream="\n".join(line.rstrip() for text in streams[api] for line in text.split("\n")),
                reply=numbers.replace_ids(json.dumps(replies[api], indent=2, ensure_ascii=False)),
            )
        )
    return "".join(page)


def _decode(reply: bytes | ApiError) -> dict[str, Any]:
    assert not isinstance(reply, ApiError)
    decoded: dict[str, Any] = json.loads(reply)
    return decoded


def _format_completion(chunk: dict[str, Any]) -> str:
    lines = []
    for choice in chunk["choices"]:
        ending = f"  finish_reason={choice['finish_reason']}" if choice["finish_reason"] else ""
        lines.append(f"  [{choice['index']}]  {json.dumps(choice['text'], ensure_ascii=False)}{ending}")
    if chunk.get("usage"):
        lines.append(f"  usage  {json.dumps(chunk['usage'])}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(asyncio.run(render_page()))
