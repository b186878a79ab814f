"""Scripts for the suites: what a capable model would write, so that every case of every suite can pass.

A reply is selected by the marker of its step, which the suites put into the text of every turn.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from antiphon.app.requests.tool_choice import build_table
from antiphon.app.requests.tools import read_tools
from antiphon.harmony.detection.detect import DIALECTS
from antiphon.harmony.dialect import Dialect
from antiphon.harmony.tools import ToolSpec
from antiphon.kit.conformance.request_builder import case_marker, fill_tools
from antiphon.kit.conformance.suites import SUITE_NAMES, CaseSuite, LiveCase, LiveStep, load_suite

Json = dict[str, Any]
SCRIPTED_SUITES = tuple(name for name in SUITE_NAMES if name != "hosted")
"""Suites whose cases need no MCP server. `write_hosted_script` plays the other one."""
REASONING = "Let me think."
ANSWER = "Hello, 世界 😀! That is all."
VALUES: dict[str, Any] = {"string": "Oslo", "integer": 3, "number": 0.5, "boolean": True, "null": None}
CUSTOM_INPUTS = {
    "exec": "text(1)",
    "pick_date": "2026-11-23",
    "apply_patch": "*** Begin Patch\n*** Add File: hello.txt\n+Hello\n*** End Patch\n",
}
"""Inputs of custom tools with a grammar."""


def write_script(dialect_name: str = "hermes", suites: Sequence[str] = SCRIPTED_SUITES) -> list[Json]:
    """Returns the replies to every generating step of the suites, in the words of a dialect."""
    replies: list[Json] = []
    for suite in map(load_suite, suites):
        for case in suite.case:
            for number, step in reversed([*enumerate(case.step, 1)]):
                reply = _write_reply(DIALECTS[dialect_name], suite, case, number, step)
                if reply is not None:
                    replies.append(reply)
    return [*replies, {"name": "any", "output": [ANSWER]}]


def write_hosted_script(label: str, tool: str, result: str) -> list[Json]:
    """Returns the replies to the suite hosted, in the words of the dialect hermes.

    The model calls the tool of the server with this label until it reads `result`, or that the user refuses.
    """
    call = f'<tool_call>\n{{"name": "{label}__{tool}", "arguments": {{}}}}\n</tool_call>'
    return [
        {"name": "result", "when": [result], "output": [ANSWER], "tokens_per_chunk": 3},
        {"name": "denied", "when": ["The user did not approve"], "output": [ANSWER], "tokens_per_chunk": 3},
        {"name": "none", "when": ["(hosted.none.1)"], "output": [ANSWER], "tokens_per_chunk": 3},
        {"name": "thrice", "when": ["(hosted.max-tool-calls.1)"], "output": [call] * 3, "tokens_per_chunk": 3},
        {
            "name": "call",
            "when": ["(hosted."],
            "output": [f"<think>\n{REASONING}\n</think>\n\n", call],
            "tokens_per_chunk": 3,
        },
        {"name": "any", "output": [ANSWER]},
    ]


def _write_reply(dialect: Dialect, suite: CaseSuite, case: LiveCase, number: int, step: LiveStep) -> Json | None:
    marker = case_marker(suite, case, number)
    if step.path not in ("/responses", "/responses/compact", "/chat/completions"):
        return None
    output = _write_output(dialect, suite, step)
    return {"name": marker, "when": [marker], "output": output, "tokens_per_chunk": 3}


def _write_output(dialect: Dialect, suite: CaseSuite, step: LiveStep) -> list[str]:
    """Returns reasoning, text and calls as the step expects them."""
    expect, output = step.expect, []
    if dialect.think:
        output.append(f"{dialect.think[0]}\n{REASONING}\n{dialect.think[1]}\n\n")
    is_forced = isinstance((step.body or {}).get("tool_choice"), str) and step.body["tool_choice"] == "required"  # type: ignore[index]
    names = list(expect.calls) if expect.calls is not None else []
    tools = _offered_tools(suite, step)
    if not names and is_forced:
        names = [".".join(filter(None, (tool.namespace, tool.name))) for tool in [*tools][:1]]
    if not names or "message" in expect.kinds:
        output.append(_write_answer(dialect, _choose_text(step)))
    if names and dialect.calls:
        calls = [_write_call(name, tools) for name in names]
        variants = (calls, [_as_function(*call) for call in calls])
        written = (call_format.write_calls(variant) for variant in variants for call_format in dialect.calls)
        output.append(next((text for text in written if text is not None), ""))
    return output


def _choose_text(step: LiveStep) -> str:
    body, expect = step.body or {}, step.expect
    form = (body.get("text") or {}).get("format") or {}
    schema = form.get("schema", {"type": "object"})
    if form.get("type") in ("json_schema", "json_object"):
        return json.dumps(_example_of(schema), ensure_ascii=False)
    if expect.json_keys:
        return json.dumps(dict.fromkeys(expect.json_keys, "Oslo"))
    return "word " * 60 + "." if "incomplete" in expect.ending else ANSWER


def _write_answer(dialect: Dialect, text: str) -> str:
    before, after = dialect.answer or ("", "")
    return f"{before}{text}{after}"


def _offered_tools(suite: CaseSuite, step: LiveStep) -> Any:
    """Returns the table of the tools that the model sees."""
    if step.path != "/responses":
        names = [tool["function"] | {"type": "function"} for tool in (step.body or {}).get("tools", [])]
        return build_table(read_tools(names, "tools"))
    body = fill_tools(step.body or {}, suite)
    items = body["input"] if isinstance(body.get("input"), list) else []
    added = [item["tools"] for item in items if isinstance(item, dict) and item.get("type") == "additional_tools"]
    request = [*body.get("tools", []), *(tool for tools in added for tool in tools)]
    return build_table(read_tools(request, "tools"))


def _write_call(name: str, tools: Any) -> tuple[Any, str]:
    namespace, _, leaf = name.rpartition(".")
    [spec] = [tool for tool in tools if (tool.namespace or "", tool.name) == (namespace, leaf)]
    if spec.kind == "custom":
        return spec, CUSTOM_INPUTS.get(spec.name, "Buy milk.")
    return spec, json.dumps(_example_of(spec.parameters or {"type": "object"}), ensure_ascii=False)


def _as_function(spec: ToolSpec, text: str) -> tuple[ToolSpec, str]:
    """Returns the call as a model writes it whose format knows functions only."""
    if spec.kind == "function":
        return spec, text
    return msgspec.structs.replace(spec, kind="function"), json.dumps({"input": text}, ensure_ascii=False)


def _example_of(schema: Any) -> Any:
    """Returns a value that follows a JSON schema."""
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type", "object")
    kind = kind[0] if isinstance(kind, list) else kind
    makers: dict[str, Callable[[], Any]] = {
        "object": lambda: {key: _example_of(value) for key, value in schema.get("properties", {}).items()},
        "array": lambda: [_example_of(schema["items"])] * max(1, schema.get("minItems", 1)),
    }
    return makers[kind]() if kind in makers else VALUES[kind]
