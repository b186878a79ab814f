"""A whole server in front of a remote engine: streams, refusals, restarts of the engine, conversations."""

import gc
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from openai import BadRequestError, OpenAI

from tests.app.remote.served_engine import FakeServerThread, decode_events, serve_remote, tokens_of
from tests.counts import FULL_COUNTS
from tests.engine.remote.fake_server import FakeServer, Pause, Reply, Reset, json_reply, play_vllm, sse, vllm_tokens
from tests.engine.remote.remote_helpers import (
    EOS,
    drop_grammars,
    follow_gbnf,
    follow_grammars,
    play_llama,
    sample_gbnf,
    sample_grammar,
)
from tests.invariants import check_stream
from tests.progress import HANG_TIMEOUT_S
from tests.serving import RunningServer

KILLS = 100 if FULL_COUNTS else 6
STREAMS = 4


def read_events(server: RunningServer, **fields: Any) -> list[dict[str, Any]]:
    """Returns the events of a streamed response."""
    body = {"model": "tiny", "input": "Hello!", "stream": True, "store": False, **fields}
    response = httpx.post(f"{server.url}/responses", json=body, timeout=HANG_TIMEOUT_S)
    response.raise_for_status()
    return decode_events(response.text)


def test_stream_of_a_remote_engine() -> None:
    with serve_remote(play_vllm(*tokens_of("Hello, you."), cached=5)) as (server, _):
        response = check_stream(read_events(server))
        assert response["output"][0]["content"][0]["text"] == "Hello, you."
        assert response["usage"]["input_tokens_details"]["cached_tokens"] == 5
        with OpenAI(base_url=server.url, api_key="none") as client:
            chat = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Hello!"}])
        assert chat.choices[0].message.content == "Hello, you."


def test_refused_job_is_an_http_error_before_any_event() -> None:
    with serve_remote(json_reply({"error": {"message": "top_p is wrong", "code": 400}}, 400)) as (server, [engine]):
        body = {"model": "tiny", "input": "Hello!", "stream": True}
        refused = httpx.post(f"{server.url}/responses", json=body)
        assert refused.status_code == 400 and "top_p is wrong" in refused.json()["error"]["message"]
        engine.server.default = json_reply({"error": {"message": "The engine is currently busy"}}, 503)
        busy = httpx.post(f"{server.url}/responses", json=body)
        assert (busy.status_code, busy.headers["retry-after"]) == (429, "1")


STRICT_TOOL = {"type": "function", "name": "f", "strict": True, "parameters": {"type": "object", "properties": {}}}
FORMAT = {"type": "json_schema", "name": "x", "schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("responses", {"input": "Hi", "tools": [STRICT_TOOL]}, "tools"),
        ("responses", {"input": "Hi", "tools": [STRICT_TOOL], "tool_choice": "required"}, "tool_choice"),
        ("responses", {"input": "Hi", "text": {"format": FORMAT}}, "text.format"),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": "Hi"}], "response_format": {"type": "json_object"}},
            "response_format",
        ),
        ("completions", {"prompt": "Hi", "guided_regex": "a+"}, "guided_regex"),
    ],
)
def test_request_that_needs_a_grammar_is_refused_by_name(path: str, fields: dict[str, Any], param: str) -> None:
    with serve_remote(play_vllm(EOS), drop_grammars) as (server, [engine]):
        reply = httpx.post(f"{server.url}/{path}", json={"model": "tiny", **fields})
        error = reply.json()["error"]
        assert (reply.status_code, error["param"]) == (400, param)
        assert "--structured-outputs-config" in error["message"]
        assert not engine.server.jobs


LARK_TOOL = {"type": "custom", "name": "g", "format": {"type": "grammar", "syntax": "lark", "definition": ""}}


def lark_tool(definition: str) -> dict[str, Any]:
    return {**LARK_TOOL, "format": {**LARK_TOOL["format"], "definition": definition}}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("responses", {"input": "Hi", "tools": [lark_tool('start: "ab"')]}, "tools[0].format.definition"),
        ("responses", {"input": "Hi", "tools": [STRICT_TOOL]}, "tools[0].parameters"),
        ("responses", {"input": "Hi", "tools": [STRICT_TOOL, lark_tool('start: "ab"')]}, "tools"),
        ("responses", {"input": "Hi", "tools": [STRICT_TOOL], "text": {"format": FORMAT}}, None),
        ("responses", {"input": "Hi", "text": {"format": FORMAT}}, "text.format.schema"),
    ],
)
def test_grammar_that_the_engine_refuses_is_told_by_its_field(
    path: str, fields: dict[str, Any], param: str | None
) -> None:
    def refuse(body: dict[str, Any]) -> Reply:
        grammar = body["structured_outputs"]["grammar"]
        return json_reply({"error": {"message": f"Grammar error: {grammar}", "code": 400}}, 400)

    server, engine = _shared_server()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(engine.server, "answer_job", refuse)
        reply = httpx.post(f"{server.url}/{path}", json={"model": "tiny", "tool_choice": "auto", **fields})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (400, "unsupported_parameter", param)
    assert "start:" not in reply.text and "TEXT" not in reply.text and "<[" not in reply.text


def test_newer_syntax_of_a_custom_tool_reaches_the_engine_in_the_older_one() -> None:
    server, engine = _shared_server()
    answer_with_random_tokens(engine.server, 1)
    tool = lark_tool('start: "ab"~1..3')
    output = check_stream(read_events(server, tools=[tool], tool_choice="required", parallel_tool_calls=False))[
        "output"
    ]
    [call] = [item for item in output if item["type"] == "custom_tool_call"]
    assert call["input"] in ("ab", "abab", "ababab")
    sent = engine.server.jobs[-1].body["structured_outputs"]["grammar"]
    assert '"ab"{1,3}' in sent and "~1..3" not in sent


def test_strict_tools_over_llama_cpp_without_llguidance() -> None:
    """The turn's grammar is translated to GBNF. What cannot be is refused by the name of its field."""
    tool = {**STRICT_TOOL, "parameters": WEATHER_PARAMETERS}
    left_recursive = lark_tool('start: start "a" | "b"')
    with serve_remote(play_vllm(EOS), follow_gbnf, owned_by="llamacpp", text_field="content") as (server, [engine]):
        for seed in range(200 if FULL_COUNTS else 10):
            engine.server.answer_job = lambda body, seed=seed: play_llama(
                *sample_gbnf(body["grammar"], body["n_predict"], seed)
            )
            response = check_stream(
                read_events(server, tools=[tool], tool_choice="required", parallel_tool_calls=False)
            )
            assert response["status"] == "completed", response["error"]
            [call] = [item for item in response["output"] if item["type"] == "function_call"]
            check_weather(call["arguments"])
        body = {"model": "tiny", "input": "Hi", "tools": [left_recursive]}
        reply = httpx.post(f"{server.url}/responses", json=body)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tools[0].format.definition")
        assert "left recursion" in reply.json()["error"]["message"]


WEATHER_PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Oslo", "Lima"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 99},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}


def check_weather(text: str) -> None:
    arguments = json.loads(text)
    assert arguments["city"] in ("Oslo", "Lima") and 1 <= arguments["days"] <= 99


def test_required_tool_call_is_valid_however_random_the_engine_is() -> None:
    """The engine follows the grammar with random tokens."""
    with serve_remote(play_vllm(EOS)) as (server, [engine]):
        tool = {"type": "function", "name": "get_weather", "strict": True, "parameters": WEATHER_PARAMETERS}
        num_complete, count = 0, 200 if FULL_COUNTS else 10
        for seed in range(count):
            answer_with_random_tokens(engine.server, seed)
            response = check_stream(
                read_events(server, tools=[tool], tool_choice="required", parallel_tool_calls=False)
            )
            if response["status"] == "incomplete":  # random digits need not end
                assert response["incomplete_details"] == {"reason": "max_output_tokens"}
                continue
            num_complete += 1
            [call] = [item for item in response["output"] if item["type"] == "function_call"]
            check_weather(call["arguments"])
        assert num_complete > 0.7 * count


def answer_with_random_tokens(server: FakeServer, seed: int) -> None:
    """Makes the server answer the next job with random tokens of the job's grammar."""
    choose = server._choose_reply

    def choose_once(request: Any) -> Reply:
        if "x-request-id" not in request.headers:
            return choose(request)
        server._choose_reply = choose  # type: ignore[method-assign]
        tokens = sample_grammar(request.body["structured_outputs"]["grammar"], 1000, seed)
        return play_vllm(*tokens, finish="stop" if tokens[-1] == EOS else "length")

    server._choose_reply = choose_once  # type: ignore[method-assign]


@pytest.mark.parametrize("cut", [*range(0, 700, 1 if FULL_COUNTS else 43)])
def test_engine_that_stops_at_any_byte_leaves_a_legal_stream(cut: int) -> None:
    data = b"".join(sse(*[vllm_tokens(token) for token in tokens_of("Hi, it is I.")[:-1]]))[:cut]
    reply = Reply([data, Reset()])
    server, engine = _shared_server()
    engine.server.default = reply
    body = {"model": "tiny", "input": "Hello!", "stream": True}
    response = httpx.post(f"{server.url}/responses", json=body, timeout=HANG_TIMEOUT_S)
    if response.status_code == 200:
        final = check_stream(decode_events(response.text))
        assert final["status"] == "failed" and final["error"]["code"] == "server_error"
    else:
        assert response.status_code == 503 and response.headers["retry-after"]


_shared: list[Any] = []


def _shared_server() -> tuple[RunningServer, FakeServerThread]:
    return _shared[0], _shared[1]


@pytest.fixture(scope="module", autouse=True)
def shared_server() -> Iterator[None]:
    """A server for the tests of single streams."""
    with serve_remote(play_vllm(EOS)) as (server, [engine]):
        _shared[:] = [server, engine]
        yield
        _shared.clear()


# asyncio leaves connections open that it accepted at the moment in which the fake server closed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_killed_engine_leaves_legal_streams() -> None:
    """Streams end as failed, or complete; what was shown stays; the server serves again after each kill."""
    tokens = tokens_of("one two three four five six seven eight nine ten")
    slow = Reply([part for token in tokens[:-1] for part in (*sse(vllm_tokens(token), end=False), Pause(0.005))])
    slow = Reply([*slow.parts, *play_vllm(EOS).parts])
    with serve_remote(slow) as (server, [engine]), ThreadPoolExecutor(STREAMS) as pool:
        for kill in range(KILLS):
            streams = [pool.submit(_read_or_refuse, server) for _ in range(STREAMS)]
            threading.Event().wait(0.01 + 0.013 * (kill % 9))
            engine.kill()
            engine.start()
            for stream in streams:
                events = stream.result(60)
                if events is not None:
                    assert check_stream(events)["status"] in ("failed", "completed")
        assert check_stream(read_events(server))["status"] == "completed"
    gc.collect()  # here, so that no later test gets the warnings about these connections


def _read_or_refuse(server: RunningServer) -> list[dict[str, Any]] | None:
    """Returns the events; None if the engine was down before the first one."""
    body = {"model": "tiny", "input": "Hello!", "stream": True, "store": False}
    response = httpx.post(f"{server.url}/responses", json=body, timeout=HANG_TIMEOUT_S)
    assert response.status_code in (200, 503), response.text
    return decode_events(response.text) if response.status_code == 200 else None


def test_turns_of_a_conversation_go_to_one_replica() -> None:
    with (
        serve_remote(play_vllm(*tokens_of("Hi")), num_engines=3) as (server, engines),
        OpenAI(base_url=server.url, api_key="none") as client,
    ):
        for number in range(6):
            previous = None
            for _ in range(3):
                response = client.responses.create(
                    model="tiny", input=f"chat {number}", previous_response_id=previous, store=True
                )
                previous = response.id
        by_key: dict[str, set[int]] = {}
        for index, engine in enumerate(engines):
            for job in engine.server.jobs:
                by_key.setdefault(job.headers["x-session-id"], set()).add(index)
        assert len(by_key) == 6 and all(len(places) == 1 for places in by_key.values())
        assert len({place for places in by_key.values() for place in places}) > 1


def test_metrics_of_each_replica() -> None:
    with serve_remote(play_vllm(*tokens_of("Hi")), num_engines=2) as (server, engines):
        assert check_stream(read_events(server))["status"] == "completed"
        page = httpx.get(f"{server.root}/metrics").text
        for engine in engines:
            labels = f'{{model_name="tiny",replica="127.0.0.1:{engine.server.port}"}}'
            assert f"antiphon:engine_replica_up{labels} 1.0" in page
            attempts = float(len(engine.server.jobs))
            assert f"antiphon:engine_replica_attempts_total{labels} {attempts}" in page


def test_unsupported_log_probabilities_are_refused_by_name() -> None:
    def probes(body: dict[str, Any]) -> Reply | None:
        too_many = (body.get("logprobs") or 0) > 5
        return json_reply({"error": {"message": "too many", "code": 400}}, 400) if too_many else follow_grammars(body)

    with (
        serve_remote(play_vllm(EOS), probes) as (server, _),
        OpenAI(base_url=server.url, api_key="none", max_retries=0) as client,
    ):
        with pytest.raises(BadRequestError, match="at most 5 per token") as caught:
            client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "Hi"}], logprobs=True, top_logprobs=6
            )
        assert caught.value.param == "top_logprobs"
