"""Cases of turns with hosted tools, and functions that start them on a manager without HTTP."""

import json
from typing import Any

from antiphon.app.inspection.recorder import TurnRecorder
from antiphon.app.options.settings import Settings
from antiphon.app.registry.model_registry import ModelRegistry
from antiphon.app.requests.chat.request import read_chat_request
from antiphon.app.requests.messages.request import read_messages_request
from antiphon.app.tools.approvals import ApprovalSigner
from antiphon.app.tools.approved_calls import ApprovalReader
from antiphon.app.tools.hosted_options import HostedOptions, ToolTarget
from antiphon.app.tools.hosted_tools import HostedTools
from antiphon.app.tools.mcp.tool_lists import ListedTool, ToolList
from antiphon.app.tools.mcp.tool_server import ToolServer
from antiphon.app.tools.mcp.tool_servers import ToolServers
from antiphon.app.tools.outcome import ToolOutcome
from antiphon.app.tools.tool_host import HostPolicy, ToolHost
from antiphon.app.turn_types.encryption import SEAL_KEY_BYTES, Sealer
from antiphon.app.turn_types.event_log import EventLog
from antiphon.events.hosted import McpExecutionError
from tests.serving import scripted_registry
from tests.snapshots.run_case import (
    PlainSealer,
    make_origin,
    make_turn_manager,
)

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
SETTINGS = Settings(
    tool_servers=("notes=http://127.0.0.1:1/mcp",),
    hosted_tools=("web_search=notes/search", "open_page=notes/page", "code_interpreter=notes/run"),
)


class ScriptedTools(ToolServers):
    """Tools without a network. Each repeats its argument, and `broken` fails."""

    async def list_tools(self, server: ToolServer, owner: str) -> ToolList:
        return ToolList(tuple(ListedTool(name=name, input_schema=SCHEMA) for name in ("read", "broken")), 0.0)

    async def call_tool(self, server: ToolServer, name: str, arguments: dict[str, Any]) -> ToolOutcome:
        (text,) = arguments.values()
        if name == "broken":
            error = McpExecutionError(content=[{"type": "text", "text": "It is broken."}])
            return ToolOutcome(text="It is broken.", error=error)
        if name == "search":
            return ToolOutcome(text="", structured=[{"url": f"https://example.com/{text}", "title": "A page"}])
        return ToolOutcome(text=f"<{text}>")


def _call(name: str, **arguments: str) -> str:
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


READ = _call("notes__read", text="one")
CASES: dict[str, list[dict[str, Any]]] = {
    "one_call": [
        {"name": "b", "when": ["<one>"], "output": ["It says one."]},
        {"name": "a", "output": ["<think>\nRead.\n</think>\n\n", "I read it.\n", READ]},
    ],
    "failed_call": [
        {"name": "b", "when": ["It is broken."], "output": ["No luck."]},
        {"name": "a", "output": [_call("notes__broken", text="one")]},
    ],
    "two_rounds": [
        {"name": "c", "when": ["<one>", "<two>"], "output": ["Both are read."]},
        {"name": "b", "when": ["<one>"], "output": ["The next.\n", _call("notes__read", text="two")]},
        {"name": "a", "output": [READ]},
    ],
    "call_then_the_clients_tool": [{"name": "a", "output": [READ, "\n", _call("get_weather", city="Oslo")]}],
    "web_search_page_and_citation": [
        {"name": "c", "when": ["<https:"], "output": ["See [a page](https://example.com/oslo) for it."]},
        {"name": "b", "when": ["A page"], "output": [_call("open_page", url="https://example.com/oslo")]},
        {"name": "a", "output": ["I search.\n", _call("web_search", query="oslo")]},
    ],
    "code": [
        {"name": "b", "when": ["<print("], "output": ["It ran."]},
        {"name": "a", "output": [_call("code_interpreter", code='print("a")\n')]},
    ],
    "cut_inside_a_call": [{"name": "a", "output": ["I read it.\n", READ[:50]], "finish": "length"}],
}


def _make_host() -> ToolHost:
    notes = ToolServer(label="notes", url="http://127.0.0.1:1/mcp", is_operator=True)
    servers = ScriptedTools({"notes": notes})
    targets = {
        name: ToolTarget("notes", tool, "text")
        for name, tool in (("web_search", "search"), ("open_page", "page"), ("code_interpreter", "run"))
    }
    hosted = HostedTools(HostedOptions(**targets), servers, lambda prefix: f"{prefix}_0", None)
    signer = ApprovalSigner(Sealer(b"x" * SEAL_KEY_BYTES).derive_key("approvals"))
    return ToolHost(servers, hosted, ApprovalReader(signer), HostPolicy())


def _make_manager(recorder: TurnRecorder | None = None) -> Any:
    return make_turn_manager(sealer=PlainSealer(b"x" * SEAL_KEY_BYTES), tool_host=_make_host(), recorder=recorder)


async def start_chat_turns(
    script: list[dict[str, Any]], recorder: TurnRecorder | None = None
) -> tuple[list[EventLog], ModelRegistry]:
    """Starts the turns of a chat completion. Returns their logs, and the models."""
    logs, _, registry = await start_chat(script, recorder)
    return logs, registry


async def start_chat(
    script: list[dict[str, Any]], recorder: TurnRecorder | None
) -> tuple[list[EventLog], Any, ModelRegistry]:
    weather = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
    body = {
        "model": "scripted",
        "messages": [{"role": "user", "content": "Go on."}],
        "tools": [
            {"type": "mcp", "server_label": "notes", "require_approval": "never"},
            {"type": "web_search"},
            {"type": "code_interpreter", "container": {"type": "auto"}},
            weather,
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    registry = _build_registry(script)
    parsed = read_chat_request(body, registry, SETTINGS)
    origin = make_origin("chat", body)
    logs = await _make_manager(recorder).start_prompts(parsed.model, (parsed.spec,), origin=origin)
    return logs, parsed.form, registry


def _build_registry(script: list[dict[str, Any]]) -> ModelRegistry:
    return scripted_registry([{**reply, "tokens_per_chunk": 16} for reply in script])


async def start_message_turn(
    script: list[dict[str, Any]], recorder: TurnRecorder | None = None
) -> tuple[list[EventLog], ModelRegistry]:
    """Starts the turn of an Anthropic message. Returns its log, and the models."""
    body = {
        "model": "scripted",
        "max_tokens": 10_000,
        "messages": [{"role": "user", "content": "Go on."}],
        "mcp_servers": [{"type": "url", "name": "notes"}],
        "tools": [
            {"type": "web_search_20250305", "name": "web_search"},
            {"type": "code_execution_20250522", "name": "code_execution"},
            {"name": "get_weather", "input_schema": {"type": "object"}},
        ],
        "stream": True,
    }
    registry = _build_registry(script)
    parsed = read_messages_request(body, registry, lambda _: None, SETTINGS)
    log = await _make_manager(recorder).start_turn(parsed.model, parsed.spec, "", make_origin("messages", body))
    return [log], registry
