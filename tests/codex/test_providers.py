"""The real Codex over a WebSocket, with this server's own catalogue, as a local provider, and with packed bodies."""

import base64
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.codex.codex_process import KEY, Codex
from tests.codex.recorder import Tape
from tests.codex.replies import COMMAND, NOTHING, reply, run
from tests.conftest import Serve
from tests.serving import RunningServer, scripted_registry

PROVIDER = "model_providers.antiphon"
SOCKET = f"{PROVIDER}.supports_websockets=true"
TOLD = "It says antiphon-7391."
RUN = [reply("report", TOLD, when="antiphon-7391"), reply("run", run(COMMAND)), NOTHING]
WARM = [reply("warm", "Nobody hears this."), *RUN]
"""The engine plays one reply more: to what is asked before anybody has said anything."""


# WebSocket


def test_turns_over_one_socket_send_only_what_is_new(codex: Codex, server: Serve, tape: Tape) -> None:
    served = server(WARM, api_keys=(KEY,), around=tape.around)
    ran = codex.exec(served, "Run it.", SOCKET)
    assert ran.code == 0 and ran.final == TOLD
    assert not tape.turns, "nothing went by POST"
    [line] = tape.sockets
    creates = [frame for frame in line.sent if frame["type"] == "response.create"]
    assert [frame.get("generate", True) for frame in creates] == [False, True, True], "it warms up first"
    warm, first, second = creates
    ids = [event["response"]["id"] for event in line.told if event["type"] == "response.completed"]
    assert first["previous_response_id"] == ids[0] and second["previous_response_id"] == ids[1]
    assert all(frame["store"] is False for frame in creates)
    assert {item["type"] for item in second["input"]} == {"function_call_output"}
    assert len(json.dumps(second)) < len(json.dumps(warm))


def test_a_socket_that_is_not_offered_is_done_without(codex: Codex, server: Serve, tape: Tape) -> None:
    ran = codex.exec(server(RUN, api_keys=(KEY,), around=tape.around, enable_websocket=False), "Run it.", SOCKET)
    assert ran.code == 0 and ran.final == TOLD and len(tape.turns) == 2
    assert not ran.of("error"), "it falls back without a word"


# The catalogue


def catalogue_of(served: RunningServer) -> str:
    return f'{PROVIDER}.model_catalog_url="{served.url}/models"'


PATCH = """*** Begin Patch
*** Add File: note.txt
+by the catalogue
*** End Patch"""


def test_the_servers_own_catalogue_brings_the_patch_tool_and_a_short_prompt(
    codex: Codex, server: Serve, tape: Tape
) -> None:
    script = [
        reply("report", "It is written.", when="Success. Updated the following files"),
        reply("patch", f"<tool_call>\n<custom=apply_patch>\n{PATCH}\n</custom>\n</tool_call>"),
        NOTHING,
    ]
    served = server(scripted_registry(script), api_keys=(KEY,), around=tape.around)
    ran = codex.exec(served, "Write it.", catalogue_of(served))
    assert ran.code == 0 and ran.final == "It is written."
    assert not ran.items("error"), "it has its metadata"
    assert (codex.work / "note.txt").read_text(encoding="utf-8") == "by the catalogue\n"
    assert any(one.path == "/v1/models" for one in tape.exchanges)
    first = tape.turns[0]
    [tool] = [tool for tool in first.body["tools"] if tool.get("name") == "apply_patch"]
    assert tool["type"] == "custom" and tool["format"]["syntax"] == "lark"
    assert "coding agent in the user's terminal" in json.dumps(first.input[0])
    assert len(first.sent) < 30_000


# Local providers


@pytest.mark.parametrize("provider", ["ollama", "lmstudio"])
def test_it_passes_for_a_local_provider(codex: Codex, server: Serve, tape: Tape, provider: str) -> None:
    served = server(RUN if provider == "ollama" else WARM, around=tape.around)
    ran = codex.exec(served, "Run it.", flags=("--oss", "--local-provider", provider, "-m", "scripted"))
    assert ran.code == 0 and ran.final == TOLD, ran
    asked = {one.path for one in tape.exchanges}
    assert "/v1/models" in asked
    if provider == "ollama":
        assert {"/api/version", "/api/tags"} <= asked


# The shape of the last message


def test_the_last_message_fits_the_schema_that_was_asked_for(
    codex: Codex, server: Serve, tape: Tape, tmp_path: Path
) -> None:
    schema = {
        "type": "object",
        "properties": {"word": {"type": "string"}},
        "required": ["word"],
        "additionalProperties": False,
    }
    (tmp_path / "schema.json").write_text(json.dumps(schema), encoding="utf-8")
    script = [reply("word", '{"word": "antiphon"}')]
    flags = ("--output-schema", str(tmp_path / "schema.json"))
    ran = codex.exec(server(script, around=tape.around), "One word.", flags=flags)
    assert ran.code == 0 and json.loads(ran.final) == {"word": "antiphon"}
    asked: Any = tape.turns[0].body["text"]["format"]
    assert asked["type"] == "json_schema" and asked["schema"] == schema


# Packed bodies


def log_in(home: Path) -> None:
    """Codex packs its requests where it thinks that it is logged in; nobody but our server is asked about that."""
    about = {"https://api.openai.com/auth": {"chatgpt_account_id": "acc", "chatgpt_plan_type": "pro"}}
    parts = ({"alg": "none"}, {"email": "a@example.com", "exp": 4_102_444_800, **about}, "signed")
    token = ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
    tokens = {"id_token": token, "access_token": token, "refresh_token": "r", "account_id": "acc"}
    login = {"auth_mode": "chatgpt", "tokens": tokens, "last_refresh": datetime.now(UTC).isoformat()}
    (home / "auth.json").write_text(json.dumps(login), encoding="utf-8")


def test_packed_requests_are_read(codex: Codex, server: Serve, tape: Tape) -> None:
    log_in(codex.home)
    served = server(RUN, around=tape.around)
    settings = (f'{PROVIDER}.name="OpenAI"', f"{PROVIDER}.requires_openai_auth=true")
    ran = codex.exec(served, "Run it.", *settings, f'chatgpt_base_url="{served.root}/backend-api"')
    assert ran.code == 0 and ran.final == TOLD
    assert {one.headers["content-encoding"] for one in tape.turns} == {"zstd"} and len(tape.turns) == 2


# Going on


def test_a_session_is_resumed_with_all_that_was_said(codex: Codex, server: Serve, tape: Tape) -> None:
    script = [
        reply("again", "It was antiphon-7391.", when="What was it?"),
        reply("report", "<think>\nRead it.\n</think>\n\n", TOLD, when="antiphon-7391"),
        reply("run", run(COMMAND)),
        NOTHING,
    ]
    served = server(script, around=tape.around)
    assert codex.exec(served, "Run it.").final == TOLD
    ran = codex.exec(served, "What was it?", resume=True)
    assert ran.code == 0 and ran.final == "It was antiphon-7391."
    before, after = tape.turns[1], tape.turns[-1]
    kept = [item for item in after.input if item["type"] in ("function_call", "function_call_output", "reasoning")]
    assert [item["type"] for item in kept] == ["function_call", "function_call_output", "reasoning"]
    assert kept[-1]["encrypted_content"], "sealed by us, and accepted back"
    done = [event["item"] for event in before.events if event["type"] == "response.output_item.done"]
    assert kept[-1]["id"] == done[0]["id"]


def test_a_long_session_is_compacted_by_the_server(codex: Codex, server: Serve, tape: Tape) -> None:
    """One whose provider is called OpenAI is asked for one compaction item, which comes back sealed in later turns."""
    script = [
        reply("go on", "I went on.", when="The summary: there were many numbers."),
        reply("sum up", "The summary: there were many numbers.", when="is about to be cut short"),
        reply("second", run("echo second"), when="Process exited with code 0"),
        reply("first", run("seq 1 4000")),
        NOTHING,
    ]
    served = server(script, api_keys=(KEY,), around=tape.around)
    named = f'{PROVIDER}.name="OpenAI"'
    ran = codex.exec(served, "Count.", catalogue_of(served), named, "model_auto_compact_token_limit=14000")
    assert ran.code == 0 and ran.final == "I went on.", ran
    summary = next(one for one in tape.turns if one.input[-1]["type"] == "compaction_trigger")
    [item] = [event["item"] for event in summary.events if event["type"] == "response.output_item.done"]
    assert item["type"] == "compaction"
    assert tape.turns[-1].items("compaction")[0]["encrypted_content"] == item["encrypted_content"]
