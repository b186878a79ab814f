"""Files and batches with clients other than the openai SDK for Python without asyncio. All must see the same."""

import asyncio
import io
import json
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.clients.batch_files import ENDED, HELLO, MODEL, SCRIPT, parse_lines, write_lines
from tests.clients.node_install import copy_node_programs
from tests.clients.python_install import PROGRAMS_FOLDER, install_python_clients, run_program
from tests.clients.sdk_helpers import Json
from tests.progress import HANG_TIMEOUT_S, POLL_INTERVAL_S
from tests.serving import RunningServer, serve
from tests.syntax import ROOT

ENDPOINT: Any = "/v1/responses"
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
KEYS = ("sk-async", "sk-node", "sk-litellm", "sk-ai-sdk")
"""Each client has a key of its own, so that it lists its own files and batches only."""
SERVER = partial(
    serve,
    [
        {"name": "call", "when": ["weather in Oslo"], "output": [CALL]},
        {"name": "broken", "when": ["Break off"], "output": ["Half", {"fault": "the accelerator is on fire"}]},
        *SCRIPT,
    ],
    api_keys=KEYS,
    file_store=True,
)
NO_TELEMETRY = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "DO_NOT_TRACK": "1"}


def ask(text: str, **fields: object) -> Json:
    """Returns the body of a line."""
    return {"model": MODEL, "input": text, **fields}


BODIES: dict[str, Json] = {
    "slow": ask("Slowly"),
    "hot": ask("Hi", temperature=9),
    "thought": ask("What is six times seven?"),
    "unknown": ask("Hi", model="nobody"),
    "héllo": HELLO,
}
FILES = {
    "good": write_lines(ENDPOINT, BODIES).decode(),
    "faulty": write_lines("/v1/chat/completions", {"a": HELLO}).decode() + "\n\n{",
    "endless": write_lines(ENDPOINT, {"endless": ask("Forever"), "first": HELLO}).decode(),
}
EXPECTED: Json = {
    "uploaded": ["good.jsonl", len(FILES["good"].encode()), "batch", "processed", 3600],
    "same": True,
    "content": FILES["good"],
    "completed": {
        "statuses": ["validating", "completed"],
        "counts": [5, 3, 2],
        "usage_is_sum": True,
        "reasoning_tokens": 13,
        "metadata": {"name": "good"},
        "texts": [["slow", "At last."], ["thought", "42."], ["héllo", "Hello there."]],
        "errors": [["hot", 400, "decimal_above_max_value"], ["unknown", 404, "model_not_found"]],
    },
    "failed": {"status": "failed", "errors": [["invalid_url", 1], ["invalid_json_line", 3]]},
    "cancelled": {
        "statuses": ["in_progress", "cancelling", "cancelled"],
        "deletion_of_input": 409,
        "done": ["first"],
        "errors": [["endless", "batch_cancelled"]],
    },
    "batches": ["endless", "faulty", "good"],
    "files": ["endless.jsonl", "faulty.jsonl", "good.jsonl", "good.jsonl"],
    "deleted": [True, 404],
    "bad": 400,
}


def write_task(server: RunningServer, key: str) -> str:
    """Returns the argument of a program: it prints what `EXPECTED` has."""
    return json.dumps({"url": server.url, "key": key, "files": FILES})


@pytest.mark.timeout(600)  # the first run installs packages
def test_openai_node_sdk_runs_batches(node: Path, server: RunningServer, tmp_path: Path) -> None:
    results = run_node_program(node, "openai_batches.mjs", write_task(server, "sk-node"), tmp_path)
    assert results == EXPECTED


@pytest.mark.timeout(600)  # the first run installs packages
def test_litellm_runs_batches(server: RunningServer, tmp_path: Path) -> None:
    command = [
        install_python_clients("litellm"),
        PROGRAMS_FOLDER / "litellm_batches.py",
        write_task(server, "sk-litellm"),
    ]
    assert run_program(command, tmp_path, **NO_TELEMETRY) == EXPECTED


async def test_openai_async_client_runs_batches(server: RunningServer) -> None:
    async with openai.AsyncOpenAI(base_url=server.url, api_key="sk-async", max_retries=0) as client:
        assert await AsyncScenario(client).run() == EXPECTED


class AsyncScenario:
    """What the programs do, with `AsyncOpenAI`."""

    def __init__(self, client: openai.AsyncOpenAI) -> None:
        self._client = client

    async def run(self) -> Json:
        """Returns what the client saw."""
        client = self._client
        file = await self._upload("good")
        return {
            "uploaded": [file.filename, file.bytes, file.purpose, file.status, file.expires_at - file.created_at],
            "same": await client.files.wait_for_processing(file.id) == file == await client.files.retrieve(file.id),
            "content": (await client.files.content(file.id)).text,
            "completed": await self._run_completed(),
            "failed": await self._run_failed(),
            "cancelled": await self._run_cancelled(),
            "batches": [(batch.metadata or {})["name"] async for batch in client.batches.list(limit=2)],
            "files": [each.filename async for each in client.files.list(limit=1, purpose="batch")],
            "deleted": [
                (await client.files.delete(file.id)).deleted,
                await read_status(client.files.retrieve(file.id)),
            ],
            "bad": await read_status(
                client.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")
            ),
        }

    async def _run_completed(self) -> Json:
        begun = await self._start("good")
        done = await self._wait(begun, lambda batch: batch.status in ENDED)
        lines, errors = await self._read(done.output_file_id), await self._read(done.error_file_id)
        bodies = [line["response"]["body"] for line in lines]
        return {
            "statuses": [begun.status, done.status],
            "counts": [done.request_counts.total, done.request_counts.completed, done.request_counts.failed],
            "usage_is_sum": done.usage.total_tokens == sum(body["usage"]["total_tokens"] for body in bodies),
            "reasoning_tokens": done.usage.output_tokens_details.reasoning_tokens,
            "metadata": done.metadata,
            "texts": [
                [line["custom_id"], body["output"][-1]["content"][0]["text"]]
                for line, body in zip(lines, bodies, strict=True)
            ],
            "errors": [
                [line["custom_id"], line["response"]["status_code"], line["response"]["body"]["error"]["code"]]
                for line in errors
            ],
        }

    async def _run_failed(self) -> Json:
        batch = await self._wait(await self._start("faulty"), lambda batch: batch.status in ENDED)
        return {"status": batch.status, "errors": [[each.code, each.line] for each in batch.errors.data]}

    async def _run_cancelled(self) -> Json:
        endless = await self._wait(await self._start("endless"), lambda batch: batch.request_counts.completed == 1)
        refused = await read_status(self._client.files.delete(endless.input_file_id))
        cancelling = await self._client.batches.cancel(endless.id)
        ended = await self._wait(endless, lambda batch: batch.status in ENDED)
        return {
            "statuses": [endless.status, cancelling.status, ended.status],
            "deletion_of_input": refused,
            "done": [line["custom_id"] for line in await self._read(ended.output_file_id)],
            "errors": [[line["custom_id"], line["error"]["code"]] for line in await self._read(ended.error_file_id)],
        }

    async def _upload(self, name: str) -> Any:
        file, expiry = (f"{name}.jsonl", io.BytesIO(FILES[name].encode())), {"anchor": "created_at", "seconds": 3600}
        return await self._client.files.create(file=file, purpose="batch", expires_after=expiry)  # type: ignore[arg-type]

    async def _start(self, name: str) -> Any:
        file_id = (await self._upload(name)).id
        return await self._client.batches.create(
            input_file_id=file_id, endpoint=ENDPOINT, completion_window="24h", metadata={"name": name}
        )

    async def _wait(self, batch: Any, condition: Callable[[Any], bool]) -> Any:
        async with asyncio.timeout(HANG_TIMEOUT_S):
            while not condition(batch := await self._client.batches.retrieve(batch.id)):
                await asyncio.sleep(POLL_INTERVAL_S)
        return batch

    async def _read(self, file_id: str) -> list[Json]:
        return parse_lines((await self._client.files.content(file_id)).text)


async def read_status(attempt: Any) -> int | None:
    """Returns the HTTP status of the error that a call raises."""
    try:
        await attempt
    except openai.APIStatusError as error:
        return error.status_code
    return None


AI_SDK_REQUESTS: Json = {
    "slow": {"prompt": "Slowly"},
    "thought": {"prompt": "What is six times seven?"},
    "hot": {"prompt": "Hi", "temperature": 9},
    "weather": {"prompt": "What is the weather in Oslo?"},
    "cut": {"prompt": "Hi", "maxOutputTokens": 5},
    "broken": {"prompt": "Break off."},
}
AI_SDK_ENDLESS: Json = {"endless": {"prompt": "Forever"}, "done": {"prompt": "Hi"}}


def expect_item(name: str, text: str, tokens: tuple[int, int] = (0, 0), **fields: object) -> Json:
    """Returns a result of the AI SDK; `tokens` are those of the output, and of the reasoning in it."""
    item = {"text": text, "finishReason": "stop", "types": ["text"], "calls": [], "tokens": list(tokens)}
    return {"id": name, "status": "succeeded", **item, **fields}


@pytest.mark.timeout(600)  # the first run installs packages
def test_ai_sdk_runs_batches(node: Path, server: RunningServer, tmp_path: Path) -> None:
    task = {"url": server.url, "key": "sk-ai-sdk", "model": MODEL, "tool": "weather"}
    task |= {"requests": AI_SDK_REQUESTS, "endless": AI_SDK_ENDLESS}
    results = run_node_program(node, "ai_sdk_batches.mjs", json.dumps(task), tmp_path)
    begun = {"status": "pending", "raw": "validating", "warnings": 0, "has_file": True, "lifetime_min": 120}
    assert results["begun"] == begun
    done = results["completed"]
    assert (done["status"], done["counts"]) == ("completed", {"total": 6, "pending": 0, "completed": 5, "failed": 1})
    call = {"finishReason": "tool-calls", "types": ["tool-call"], "calls": [["get_weather", {"city": "Oslo"}]]}
    assert done["results"] == [
        expect_item("slow", "At last.", (9, 0)),
        expect_item("thought", "42.", (21, 13), types=["reasoning", "text"]),
        expect_item("weather", "", (59, 0), **call),
        expect_item("cut", "Hello", (5, 0), finishReason="length"),
        # A response that the engine broke off. The SDK looks for a field `type` in its error, which the API has not.
        {"id": "broken", "status": "failed", "error": ["invalid_response", None]},
        {"id": "hot", "status": "failed", "error": ["decimal_above_max_value", 400]},
    ], "those of the output file, then those of the error file"
    assert results["cancelled"] == {
        "statuses": ["in_progress", "cancelled", "failed"],
        "results": [
            expect_item("done", "Hello there.", (13, 0)),
            {"id": "endless", "status": "cancelled", "error": ["batch_cancelled", None]},
        ],
    }
    assert (results["listed"], results["last"]) == ([["second", "cancelled"], ["first", "completed"]], None)


def run_node_program(node: Path, program: str, task: str, home: Path) -> Json:
    """Runs a program with Node. Returns what it printed."""
    folder = copy_node_programs()
    try:
        return run_program([node, folder / program, task], home)
    finally:
        shutil.rmtree(folder)


def test_page_of_clients_names_the_methods_that_are_called() -> None:
    page = (ROOT / "docs/reference/clients.md").read_text(encoding="utf-8")
    for client, path in (
        ("`openai` for Python", Path(__file__)),
        ("`openai` for Node", PROGRAMS_FOLDER / "openai_batches.mjs"),
        ("`@ai-sdk/openai` with `ai`", PROGRAMS_FOLDER / "ai_sdk_batches.mjs"),
        ("`litellm`", PROGRAMS_FOLDER / "litellm_batches.py"),
    ):
        (row,) = re.findall(rf"^\| {re.escape(client)} \| (.*[bB]atch.*) \|$", page, re.MULTILINE)
        program = path.read_text(encoding="utf-8")
        names = [name.rpartition(".")[2] for name in re.findall(r"`([\w.]+)`", row)]
        assert len(names) >= 5 and [name for name in names if name not in program] == [], client
