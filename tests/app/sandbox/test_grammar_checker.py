"""Client-given grammars: one that crashes or exhausts the checking process is rejected, and nothing else ends."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from antiphon.app.sandbox.grammar_checker import (
    MAX_CHECKED_GRAMMAR_CHARS,
    MAX_GRAMMAR_RULES,
    TOO_COMPLEX,
    GrammarChecker,
)
from antiphon.app.sandbox.messages import GrammarKind
from tests.app.sandbox.grammar_chains import reference_chain, rule_chain, terminal_chain
from tests.conftest import StartServer
from tests.progress import HANG_TIMEOUT_S

pytestmark = pytest.mark.processes

HELLO = [{"name": f"hello {n}", "output": ["Hello."]} for n in range(4)]


CRASHES: list[tuple[GrammarKind, str]] = [
    ("schema", reference_chain(4_500)),
    ("schema", reference_chain(200, nested=30)),
    ("lark", "start: a0\n" + "\n".join(f'a{n}: ("x" (a{n + 1}))' for n in range(990)) + '\na990: "y"\n'),
]
"""Grammars within the bounds of size that overflow a stack, or may."""


@pytest.fixture
def checker() -> Iterator[GrammarChecker]:
    checker = GrammarChecker()
    yield checker
    checker.process.stop()


async def test_valid_grammars_have_no_fault(checker: GrammarChecker) -> None:
    assert await checker.find_fault("schema", '{"type": "object", "properties": {"a": {"type": "string"}}}') == ""
    assert await checker.find_fault("lark", 'start: "a" | "b"') == ""
    assert await checker.find_fault("regex", "[a-z]{1,8}") == ""
    assert await checker.find_fault("schema", reference_chain(50)) == ""
    assert await checker.find_fault("lark", rule_chain(200)) == ""


async def test_fault_of_an_invalid_grammar_is_the_compilers(checker: GrammarChecker) -> None:
    assert "unknown name" in await checker.find_fault("lark", "start: nothing")
    assert await checker.find_fault("schema", '{"type": "string", "enum": []}')


@pytest.mark.parametrize("build", [rule_chain, terminal_chain])
async def test_grammar_with_too_many_rules_is_rejected_by_count(build: Any, checker: GrammarChecker) -> None:
    fault = await checker.find_fault("lark", build(10_000))
    assert fault == f"it has 10002 rules; at most {MAX_GRAMMAR_RULES} are supported"


async def test_too_long_grammar_is_rejected_by_size(checker: GrammarChecker) -> None:
    fault = await checker.find_fault("regex", "a" * (MAX_CHECKED_GRAMMAR_CHARS + 1))
    assert str(MAX_CHECKED_GRAMMAR_CHARS) in fault


async def test_grammar_that_kills_the_process_is_too_complex(checker: GrammarChecker) -> None:
    for kind, source in CRASHES[:2]:
        assert await checker.find_fault(kind, source) == TOO_COMPLEX
        assert await checker.find_fault("lark", f'start: "{len(source)}"') == ""


@pytest.mark.parametrize(("kind", "source"), CRASHES)
async def test_grammar_is_accepted_or_rejected_but_never_hangs(
    kind: GrammarKind, source: str, checker: GrammarChecker
) -> None:
    async with asyncio.timeout(HANG_TIMEOUT_S):
        assert await checker.find_fault(kind, source) in ("", TOO_COMPLEX)


async def test_check_of_expensive_schema_is_bounded(checker: GrammarChecker) -> None:
    properties = {
        f"p{n}": {"anyOf": [{"type": "string", "pattern": f"a{n}.*b{n}"}, {"type": "integer"}]} for n in range(3_000)
    }
    async with asyncio.timeout(HANG_TIMEOUT_S):
        await checker.find_fault("schema", json.dumps({"type": "object", "properties": properties}))


async def test_worker_killed_from_outside_is_started_again(checker: GrammarChecker) -> None:
    await checker.find_fault("lark", 'start: "a"')
    assert checker.process.pid is not None
    os.kill(checker.process.pid, signal.SIGKILL)
    assert await checker.find_fault("lark", 'start: "b"') == ""


async def test_results_are_cached(checker: GrammarChecker) -> None:
    await checker.find_fault("lark", 'start: "a"')
    checker.process.stop()
    assert await checker.find_fault("lark", 'start: "a"') == ""
    assert checker.process.pid is None


@pytest.mark.parametrize("path", ["/responses", "/chat/completions"])
def test_crashing_schema_of_any_tool_is_a_400_and_the_server_lives(path: str, start_server: StartServer) -> None:
    server = start_server(HELLO)
    parameters = json.loads(reference_chain(4_500))
    function = {"name": "f", "parameters": parameters}
    tool = {"type": "function", **function} if path == "/responses" else {"type": "function", "function": function}
    content = {"input": "Hi"} if path == "/responses" else {"messages": [{"role": "user", "content": "Hi"}]}
    body = {"model": "scripted", **content, "tools": [tool], "tool_choice": "required"}
    reply = httpx.post(server.url + path, json=body, timeout=HANG_TIMEOUT_S)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (400, "invalid_function_parameters")
    assert error["param"].endswith("parameters") and "too complex" in error["message"]
    assert (
        httpx.post(server.url + path, json={"model": "scripted", **content}, timeout=HANG_TIMEOUT_S).status_code == 200
    )
