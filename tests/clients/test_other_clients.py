"""SDKs and frameworks that people build agents with, as real programs over real sockets, in environments of their own.

Each program in `programs/` runs the same scenarios with one or more clients and prints what they saw. All clients must
see the same. A new client is a program, a row of `CLIENTS`, and a lock file unless an environment has its packages.
"""

import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.clients.claude_code import CLAUDE_CODE_VERSION
from tests.clients.node_install import copy_node_programs, install_node_sdk
from tests.clients.python_install import PROGRAMS_FOLDER, install_python_clients, run_program
from tests.codex.codex_process import CODEX_VERSION
from tests.serving import RunningServer, serve
from tests.syntax import ROOT

PAGE = ROOT / "docs/reference/clients.md"

Servers = dict[str, RunningServer]
"""A server for each way to return reasoning, by the value of `--reasoning-output`."""

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
FORGOTTEN = "It is 4 degrees. No reasoning came back."
REPORT = {"when": ["4 degrees", "Look it up."], "output": ["<think>\nReport it.\n</think>\n\n", "It is 4 degrees."]}
FAULT = "the accelerator is on fire"
SCRIPT: list[dict[str, Any]] = [
    {"name": "report", **REPORT},
    {"name": "forgotten", **REPORT, "when": ["4 degrees"], "output": [FORGOTTEN]},
    {"name": "call", "when": ["weather in Oslo"], "output": ["<think>\nLook it up.\n</think>\n\n", CALL]},
    {"name": "think", "when": ["six times seven"], "output": ["<think>\nSix sevens.\n</think>\n\n", "42."]},
    {"name": "broken", "when": ["Break off"], "output": ["Half", {"fault": FAULT}]},
    {"name": "person", "when": ["a person"], "output": ['{"name": "Ann", "age": 41}']},
    {"name": "text", "output": ["Hello", " there."]},
]
TASK = {
    "model": "scripted",
    "tool_result": "4 degrees",
    "fault": FAULT,
    "prompts": {
        "text": "Say hello.",
        "reasoning": "What is six times seven?",
        "tools": "What is the weather in Oslo?",
        "structured": "Describe a person.",
        "broken": "Break off.",
    },
}
NO_TELEMETRY = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false", "DO_NOT_TRACK": "1"}

SCENARIOS = (
    "text",
    "text_stream",
    "reasoning",
    "reasoning_stream",
    "tools",
    "tools_stream",
    "structured",
    "broken_stream",
    "bad_request",
    "unknown_model",
)
TEXT_SCENARIOS = ("text", "text_stream", "broken_stream", "bad_request", "unknown_model")


@dataclass(frozen=True)
class Client:
    """A client that a program runs."""

    program: str
    name: str
    errors: tuple[str, str] = ("BadRequestError", "NotFoundError")
    """Classes of its errors for an invalid field and for an unknown model."""
    reads_reasoning: bool = True
    """Whether it hands the reasoning to its user. Some do not look for it in this API."""
    returns_reasoning: bool = True
    """Whether it sends the reasoning back in the next turn."""
    scenarios: tuple[str, ...] = SCENARIOS

    def expect(self, scenario: str) -> dict[str, Any]:
        """Returns what the client must see."""
        return {
            "text": {"text": "Hello there.", "output_tokens": 13},
            "text_stream": {"text": "Hello there.", "in_pieces": True},
            "reasoning": {"text": "42.", "reasoning": self._expect_reasoning("Six sevens.")},
            "tools": {
                "calls": [["get_weather", {"city": "Oslo"}]],
                "reasoning": self._expect_reasoning("Look it up."),
                "text": "It is 4 degrees." if self.returns_reasoning else FORGOTTEN,
            },
            "structured": {"parsed": {"name": "Ann", "age": 41}},
            "count_tokens": {"equals_usage": True},
            "broken_stream": {"raised": True, "has_message": True},
            "bad_request": {"error": self.errors[0], "status": 400},
            "unknown_model": {"error": self.errors[1], "status": 404},
        }[scenario if scenario in ("text_stream", "broken_stream") else scenario.removesuffix("_stream")]

    def _expect_reasoning(self, text: str) -> str | None:
        return text if self.reads_reasoning else None


FORGETFUL = {"reads_reasoning": False, "returns_reasoning": False}
AI_SDK_ERRORS = ("APICallError", "APICallError")
LANGCHAIN_ERRORS = ("OpenAIInvalidRequestError", "OpenAIModelNotFoundError")
PYDANTIC_AI_ERRORS = ("ModelRequestRejectedError", "ModelNotFoundError")

# Environments of the programs: a lock file of Python packages, Node's packages, or this project's own environment.
PROGRAMS = {
    "openai_client.py": None,
    "agents_client.py": "python",
    "langchain_client.py": "python",
    "pydantic_ai_client.py": "python",
    "litellm_client.py": "litellm",
    "openai_client.mjs": "node",
    "anthropic_client.mjs": "node",
    "ai_sdk_client.mjs": "node",
}
CLIENTS = (
    Client("openai_client.py", "openai Python SDK chat"),
    Client("openai_client.py", "openai Python SDK completions", scenarios=TEXT_SCENARIOS),
    Client("agents_client.py", "openai-agents responses"),
    Client("agents_client.py", "openai-agents responses, summaries"),
    Client("agents_client.py", "openai-agents chat", returns_reasoning=False),
    Client("langchain_client.py", "ChatOpenAI chat", LANGCHAIN_ERRORS, **FORGETFUL),
    Client("langchain_client.py", "ChatOpenAI responses", LANGCHAIN_ERRORS, reads_reasoning=False),
    Client("langchain_client.py", "ChatOpenAI responses, summaries", LANGCHAIN_ERRORS),
    Client("langchain_client.py", "ChatAnthropic", ("AnthropicInvalidRequestError", "AnthropicModelNotFoundError")),
    Client("pydantic_ai_client.py", "pydantic-ai OpenAIChatModel", PYDANTIC_AI_ERRORS),
    Client("pydantic_ai_client.py", "pydantic-ai OpenAIResponsesModel", PYDANTIC_AI_ERRORS),
    Client("pydantic_ai_client.py", "pydantic-ai OpenAIResponsesModel, summaries", PYDANTIC_AI_ERRORS),
    Client("pydantic_ai_client.py", "pydantic-ai AnthropicModel", PYDANTIC_AI_ERRORS),
    Client("litellm_client.py", "LiteLLM openai"),
    Client("litellm_client.py", "LiteLLM hosted_vllm"),
    Client("litellm_client.py", "LiteLLM anthropic"),
    Client("openai_client.mjs", "openai Node SDK chat", scenarios=tuple(s for s in SCENARIOS if s != "tools_stream")),
    Client("openai_client.mjs", "openai Node SDK runTools", scenarios=("tools_stream",), **FORGETFUL),
    Client("openai_client.mjs", "openai Node SDK completions", scenarios=TEXT_SCENARIOS),
    Client("anthropic_client.mjs", "anthropic Node SDK", scenarios=(*SCENARIOS, "count_tokens")),
    Client("ai_sdk_client.mjs", "AI SDK openai()", AI_SDK_ERRORS, reads_reasoning=False),
    Client("ai_sdk_client.mjs", "AI SDK openai(), summaries", AI_SDK_ERRORS),
    Client("ai_sdk_client.mjs", "AI SDK openai.chat()", AI_SDK_ERRORS, **FORGETFUL),
    Client("ai_sdk_client.mjs", "AI SDK anthropic()", AI_SDK_ERRORS),
)


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with ExitStack() as stack:
        yield {kind: stack.enter_context(serve(SCRIPT, reasoning_output=kind)) for kind in ("content", "summary")}


@pytest.mark.timeout(600)  # the first run installs packages
@pytest.mark.parametrize("program", PROGRAMS)
def test_every_client_sees_the_same(program: str, servers: Servers, tmp_path: Path, subtests: pytest.Subtests) -> None:
    for server in servers.values():
        server.access_records.clear()
    roots = {kind: server.root for kind, server in servers.items()}
    results = run_client_program(program, json.dumps(TASK | {"roots": roots}), tmp_path)
    clients = [client for client in CLIENTS if client.program == program]
    assert sorted(results) == sorted(client.name for client in clients)
    for client in clients:
        assert sorted(results[client.name]) == sorted(client.scenarios), client.name
        for scenario, seen in results[client.name].items():
            with subtests.test(client=client.name, scenario=scenario):
                assert parse_arguments(seen) == client.expect(scenario)
    statuses = Counter(record.status for server in servers.values() for record in server.access_records)
    rejected = {
        status: sum(scenario in client.scenarios for client in clients)
        for status, scenario in ((400, "bad_request"), (404, "unknown_model"))
    }
    assert statuses == {200: statuses[200], **rejected}, "the errors are the server's, and there are no others"


def run_client_program(program: str, task: str, home: Path) -> dict[str, Any]:
    environment = PROGRAMS[program]
    if environment == "node":
        node, folder = install_node_sdk(), copy_node_programs()
        try:
            return run_program([node, folder / program, task], home)
        finally:
            shutil.rmtree(folder)
    python = Path(sys.executable) if environment is None else install_python_clients(environment)
    return run_program([python, PROGRAMS_FOLDER / program, task], home, **NO_TELEMETRY)


def parse_arguments(seen: dict[str, Any]) -> dict[str, Any]:
    """Returns a result in which the arguments of calls are objects. Some clients leave them as JSON."""
    if "calls" not in seen:
        return seen
    calls = [[name, json.loads(given) if isinstance(given, str) else given] for name, given in seen["calls"]]
    return {**seen, "calls": calls}


def test_page_of_clients_names_the_tested_versions() -> None:
    rows = re.findall(r"^\| `(.+?)` \((PyPI|npm)\) \| ([\d.]+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    locks = [PROGRAMS_FOLDER / "litellm.lock", PROGRAMS_FOLDER / "python.lock", ROOT / "requirements.lock"]
    pinned = {"PyPI": read_lock("==", *locks), "npm": read_lock("@", PROGRAMS_FOLDER / "node.lock")}
    pinned["npm"] |= {"@anthropic-ai/claude-code": CLAUDE_CODE_VERSION, "@openai/codex": CODEX_VERSION}
    assert [(name, registry, pinned[registry][name]) for name, registry, _ in rows] == rows
    assert len(rows) >= 13


def read_lock(separator: str, *locks: Path) -> dict[str, str]:
    """Returns the version of each package. A later file precedes."""
    lines = [line for lock in locks for line in lock.read_text(encoding="utf-8").splitlines() if line[0] != "#"]
    return {name: version for name, _, version in (line.rpartition(separator) for line in lines)}
