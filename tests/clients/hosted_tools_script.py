"""What the scripted model says in tests of tools that the server runs, in chat completions and in messages."""

import json
from typing import Any


def write_call(name: str, **arguments: Any) -> str:
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


ADD = write_call("notes__add", a=2, b=3)
SCRIPT: list[dict[str, Any]] = [
    {"name": "again", "when": ["[again]", "the sum is 5"], "output": ["Still 5."]},
    {"name": "known code", "when": ["[again]", "forty-two"], "output": ["Still forty-two."]},
    {"name": "known page", "when": ["[again]", "example.com/oslo"], "output": ["See [it](https://example.com/oslo)."]},
    {"name": "two done", "when": ["[two]", "the sum is 5", "the sum is 9"], "output": ["5 and 9."]},
    {"name": "two next", "when": ["[two]", "the sum is 5"], "output": [write_call("notes__add", a=4, b=5)]},
    {"name": "two", "when": ["[two]"], "output": ["First.", ADD]},
    {"name": "both", "when": ["[both]"], "output": [ADD, "\n", write_call("get_weather", city="Oslo")]},
    {"name": "sum", "when": ["the sum is 5"], "output": ["<think>\nDone.\n</think>\n\n", "It is 5."]},
    {"name": "add", "when": ["[add]"], "output": ["<think>\nAdd.\n</think>\n\n", "I add.\n", ADD]},
    {"name": "broken", "when": ["Error executing tool fail"], "output": ["It failed."]},
    {"name": "fail", "when": ["[fail]"], "output": [write_call("notes__fail")]},
    {"name": "read", "when": ["it rains"], "output": ["It rains."]},
    {"name": "page", "when": ["[page]"], "output": [write_call("open_page", url="https://example.com/a")]},
    {"name": "used up", "when": ["no more web searches"], "output": ["No more."]},
    {"name": "search twice", "when": ["[max]", "oslo"], "output": [write_call("web_search", query="Rome")]},
    {"name": "found", "when": ["example.com/oslo"], "output": ["It rains: [Oslo](https://example.com/oslo). Yes."]},
    {"name": "search", "when": ["[search]"], "output": ["Let me look.", write_call("web_search", query="Oslo")]},
    {"name": "search max", "when": ["[max]"], "output": [write_call("web_search", query="Oslo")]},
    {"name": "ran", "when": ["forty-two"], "output": ["It is forty-two."]},
    {"name": "code", "when": ["[code]"], "output": [write_call("code_interpreter", code="print('forty-' + \"two\")")]},
    {"name": "raised", "when": ["ZeroDivisionError"], "output": ["It raised."]},
    {"name": "raise", "when": ["[raise]"], "output": [write_call("code_interpreter", code="1/0")]},
    {"name": "endless", "when": ["[endless]"], "output": [write_call("notes__add", a=1, b=1)]},
    {"name": "text", "output": ["Hello."]},
]
WEATHER_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
HOSTED = ("web_search=notes/search", "open_page=notes/read_page", "code_interpreter=monty")
