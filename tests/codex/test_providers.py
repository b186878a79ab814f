"""The real Codex over a WebSocket, with the server's catalogue, as a local provider, and with compressed requests."""

import base64
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.codex.codex_process import API_KEY, CodexCli
from tests.codex.recorder import TrafficRecorder
from tests.codex.replies import COMMAND, LAST_REPLY, make_command_call, make_reply
from tests.conftest import StartServer
from tests.serving import RunningServer, scripted_registry

PROVIDER = "model_providers.antiphon"
WEBSOCKET_OPTION = f"{PROVIDER}.supports_websockets=true"
REPORT = "It says antiphon-7391."
COMMAND_SCRIPT = [
    make_reply("report", REPORT, when="antiphon-7391"),
    make_reply("run", make_command_call(COMMAND)),
    LAST_REPLY,
]
LOADING_SCRIPT = [make_reply("loading", "This text is discarded."), *COMMAND_SCRIPT]
"""A script with an additional reply, for the request by which Codex loads the model of a local provider."""


# WebSocket


def test_turns_over_one_websocket_send_only_new_items(
    codex: CodexCli, start_server: StartServer, recorder: TrafficRecorder
) -> None:
    server = start_server(COMMAND_SCRIPT, api_keys=(API_KEY,), wrap_app=recorder.wrap_app)
    run = codex.exec(server, "Run it.", WEBSOCKET_OPTION)
    assert run.exit_code == 0 and run.final_message == REPORT
    assert not recorder.turns, "no request was sent by POST"
    [messages] = recorder.websockets
    creates = [frame for frame in messages.requests if frame["type"] == "response.create"]
    assert [frame.get("generate", True) for frame in creates] == [False, True, True], "the first request warms up"
    warm_up, first, second = creates
    ids = [event["response"]["id"] for event in messages.events if event["type"] == "response.completed"]
    assert first["previous_response_id"] == ids[0] and second["previous_response_id"] == ids[1]
    assert all(frame["store"] is False for frame in creates)
    assert {item["type"] for item in second["input"]} == {"function_call_output"}
    assert len(json.dumps(second)) < len(json.dumps(warm_up))


def test_codex_falls_back_to_http_without_websockets(
    codex: CodexCli, start_server: StartServer, recorder: TrafficRecorder
) -> None:
    run = codex.exec(
        start_server(COMMAND_SCRIPT, api_keys=(API_KEY,), wrap_app=recorder.wrap_app, enable_websocket=False),
        "Run it.",
        WEBSOCKET_OPTION,
    )
    assert run.exit_code == 0 and run.final_message == REPORT and len(recorder.turns) == 2
    assert not run.events_of_type("error"), "the fallback is silent"


# The catalogue


def catalog_option(server: RunningServer) -> str:
    return f'{PROVIDER}.model_catalog_url="{server.url}/models"'


PATCH = """*** Begin Patch
*** Add File: note.txt
+by the catalogue
*** End Patch"""


def test_server_catalog_enables_the_patch_tool_and_a_short_prompt(
    codex: CodexCli, start_server: StartServer, recorder: TrafficRecorder
) -> None:
    script = [
        make_reply("report", "It is written.", when="Success. Updated the following files"),
        make_reply("patch", f"<tool_call>\n<custom=apply_patch>\n{PATCH}\n</custom>\n</tool_call>"),
        LAST_REPLY,
    ]
    server = start_server(scripted_registry(script), api_keys=(API_KEY,), wrap_app=recorder.wrap_app)
    run = codex.exec(server, "Write it.", catalog_option(server))
    assert run.exit_code == 0 and run.final_message == "It is written."
    assert not run.items_of_type("error"), "Codex found the model's metadata"
    assert (codex.work_folder / "note.txt").read_text(encoding="utf-8") == "by the catalogue\n"
    assert any(exchange.path == "/v1/models" for exchange in recorder.exchanges)
    first = recorder.turns[0]
    [tool] = [tool for tool in first.body["tools"] if tool.get("name") == "apply_patch"]
    assert tool["type"] == "custom" and tool["format"]["syntax"] == "lark"
    assert "coding agent in the user's terminal" in json.dumps(first.input[0])
    assert len(first.raw_body) < 30_000


# Local providers


@pytest.mark.parametrize("provider", ["ollama", "lmstudio"])
def test_server_works_as_a_local_provider(
    codex: CodexCli, start_server: StartServer, recorder: TrafficRecorder, provider: str
) -> None:
    server = start_server(COMMAND_SCRIPT if provider == "ollama" else LOADING_SCRIPT, wrap_app=recorder.wrap_app)
    run = codex.exec(server, "Run it.", flags=("--oss", "--local-provider", provider, "-m", "scripted"))
    assert run.exit_code == 0 and run.final_message == REPORT, run
    paths = {exchange.path for exchange in recorder.exchanges}
    assert "/v1/models" in paths
    if provider == "ollama":
        assert {"/api/version", "/api/tags"} <= paths


# Structured output


def test_requested_schema_reaches_the_server_and_is_accepted(
    codex: CodexCli, start_server: StartServer, recorder: TrafficRecorder, tmp_path: Path
) -> None:
    schema = {
        "type": "object",
        "properties": {"word": {"type": "string"}},
        "required": ["word"],
        "additionalProperties": False,
    }
    (tmp_path / "schema.json").write_text(json.dumps(schema), encoding="utf-8")
    script = [make_reply("word", '{"word": "antiphon"}')]
    flags = ("--output-schema", str(tmp_path / "schema.json"))
    run = codex.exec(start_server(script, wrap_app=recorder.wrap_app), "One word.", flags=flags)
    assert run.exit_code == 0 and json.loads(run.final_message) == {"word": "antiphon"}
    text_format: Any = recorder.turns[0].body["text"]["format"]
    assert text_format["type"] == "json_schema" and text_format["schema"] == schema


# Compressed requests


def write_login(home: Path) -> None:
    """Writes a ChatGPT login, without which Codex does not compress requests. Only the test server receives it."""
    claims = {"https://api.openai.com/auth": {"chatgpt_account_id": "acc", "chatgpt_plan_type": "pro"}}
    parts = ({"alg": "none"}, {"email": "a@example.com", "exp": 4_102_444_800, **claims}, "signed")
    token = ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
    tokens = {"id_token": token, "access_token": token, "refresh_token": "r", "account_id": "acc"}
    login = {"auth_mode": "chatgpt", "tokens": tokens, "last_refresh": datetime.now(UTC).isoformat()}
    (home / "auth.json").write_text(json.dumps(login), encoding="utf-8")


def test_compressed_requests_are_accepted(
    codex: CodexCli, start_server: StartServer, recorder: TrafficRecorder
) -> None:
    write_login(codex.home)
    server = start_server(COMMAND_SCRIPT, wrap_app=recorder.wrap_app)
    settings = (f'{PROVIDER}.name="OpenAI"', f"{PROVIDER}.requires_openai_auth=true")
    run = codex.exec(server, "Run it.", *settings, f'chatgpt_base_url="{server.root}/backend-api"')
    assert run.exit_code == 0 and run.final_message == REPORT
    assert [exchange.headers["content-encoding"] for exchange in recorder.turns] == ["zstd"] * 2


# Resumed and compacted sessions


def test_resumed_session_sends_calls_outputs_and_encrypted_reasoning(
    codex: CodexCli, start_server: StartServer, recorder: TrafficRecorder
) -> None:
    script = [
        make_reply("again", "It was antiphon-7391.", when="What was it?"),
        make_reply("report", "<think>\nRead it.\n</think>\n\n", REPORT, when="antiphon-7391"),
        make_reply("run", make_command_call(COMMAND)),
        LAST_REPLY,
    ]
    server = start_server(script, wrap_app=recorder.wrap_app)
    assert codex.exec(server, "Run it.").final_message == REPORT
    run = codex.exec(server, "What was it?", resume=True)
    assert run.exit_code == 0 and run.final_message == "It was antiphon-7391."
    before, after = recorder.turns[1], recorder.turns[-1]
    resent_items = [
        item for item in after.input if item["type"] in ("function_call", "function_call_output", "reasoning")
    ]
    assert [item["type"] for item in resent_items] == ["function_call", "function_call_output", "reasoning"]
    assert resent_items[-1]["encrypted_content"], "encrypted by the server, and accepted by it"
    done_items = [event["item"] for event in before.events if event["type"] == "response.output_item.done"]
    assert resent_items[-1]["id"] == done_items[0]["id"]


def test_long_session_is_compacted_by_the_server(
    codex: CodexCli, start_server: StartServer, recorder: TrafficRecorder
) -> None:
    """A provider named OpenAI is asked for a compaction item, which later turns send back."""
    script = [
        make_reply("go on", "I went on.", when="The summary: there were many numbers."),
        make_reply("sum up", "The summary: there were many numbers.", when="is about to be cut short"),
        make_reply("second", make_command_call("echo second"), when="Process exited with code 0"),
        make_reply("first", make_command_call("seq 1 4000")),
        LAST_REPLY,
    ]
    server = start_server(script, api_keys=(API_KEY,), wrap_app=recorder.wrap_app)
    provider_name = f'{PROVIDER}.name="OpenAI"'
    run = codex.exec(server, "Count.", catalog_option(server), provider_name, "model_auto_compact_token_limit=14000")
    assert run.exit_code == 0 and run.final_message == "I went on.", run
    summary = next(exchange for exchange in recorder.turns if exchange.input[-1]["type"] == "compaction_trigger")
    [item] = [event["item"] for event in summary.events if event["type"] == "response.output_item.done"]
    assert item["type"] == "compaction"
    assert recorder.turns[-1].items_of_type("compaction")[0]["encrypted_content"] == item["encrypted_content"]
