"""Diagnosis of the prompt cache: pairs of requests, of which the second one names the response of the first one."""

from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from antiphon.app.registry.model_registry import ModelRegistry, ServedModel
from antiphon.engine.embedded import MODEL_DIR
from antiphon.engine.options import EngineOptions
from antiphon.engine.process.client import ProcessEngine
from antiphon.engine.protocol import Capabilities, EngineInfo
from antiphon.engine.scheduler.prefix_cache import MIN_PREFIX_TOKENS
from antiphon.engine.scripted.engine import ScriptedEngine, parse_script
from antiphon.harmony.detection.detect import bytes_format
from tests.codex.embedded_registry import load_model_format, make_registry, needs_weights
from tests.engine.threaded_engine import ThreadWorker
from tests.serving import RunningServer, scripted_registry, serve

WEATHER: dict[str, Any] = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
NAMED_FORMAT: dict[str, Any] = {"type": "json_schema", "name": "word", "schema": {"type": "object", "properties": {}}}
LONG = "Nothing but words. " * 400
SCRIPT: list[dict[str, Any]] = [
    {"name": "summary", "when": ["about to be cut short"], "output": ["A summary."]},
    {"name": "cached", "when": ["Cached"], "output": ["Yes."], "cached_tokens": 100_000},
    {"name": "any", "output": ["No."]},
]


def build_models() -> ModelRegistry:
    """Returns two models, the second one with an alias."""
    replies, model_format = parse_script({"reply": SCRIPT}), bytes_format("hermes")
    info = EngineInfo(max_model_len=20_000, vocab_size=262_144, device="none", eos_ids=model_format.stop_ids[:1])
    models = []
    for names in (("scripted",), ("other", "alias")):
        engine = ScriptedEngine(replies, encode=model_format.encode, decode=model_format.decode, info=info)
        models.append(ServedModel(names=names, engine=engine, format=model_format, created=1))
    return ModelRegistry(models)


SERVER = partial(serve, build_models, api_keys=("sk-one", "sk-two"))


def create(server: RunningServer, key: str = "sk-one", **fields: Any) -> Any:
    body = {"model": "scripted", "input": "Cached. Where is the zoo? " + "Say it in full. " * 10, **fields}
    reply = httpx.post(f"{server.url}/responses", json=body, headers={"authorization": f"Bearer {key}"}, timeout=60)
    assert reply.status_code == 200, reply.text
    return reply.json()


def compare(server: RunningServer, earlier: Any, key: str = "sk-one", **fields: Any) -> Any:
    """Returns the diagnosis of a request that is compared with an earlier response, and the request's response."""
    response_id = earlier if isinstance(earlier, str) else earlier["id"]
    response = create(server, key, **fields, prompt_cache_options={"comparison_response_id": response_id})
    assert response["prompt_cache_options"]["comparison_response_id"] == response_id
    stored = httpx.get(f"{server.url}/responses/{response['id']}", headers={"authorization": f"Bearer {key}"})
    assert stored.json() == response
    return response["prompt_cache_diagnostics"], response


MISSES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("model_changed", {}, {"model": "other"}),
    ("model_changed", {"tools": [WEATHER]}, {"model": "other", "input": "Another", "text": {"verbosity": "low"}}),
    ("tools_changed", {}, {"tools": [WEATHER]}),
    ("tools_changed", {"tools": [WEATHER]}, {"tools": [{**WEATHER, "description": "x"}], "text": {"format": NAMED_FORMAT}}),
    ("tools_changed", {"tools": [WEATHER]}, {"tools": [WEATHER], "tool_choice": "none"}),
    ("text_format_changed", {}, {"text": {"format": NAMED_FORMAT}, "input": "Another", "reasoning": {"effort": "low"}}),
    ("reasoning_effort_changed", {"reasoning": {"effort": "low"}}, {"reasoning": {"effort": "none"}, "input": "Another"}),
    ("verbosity_changed", {}, {"text": {"verbosity": "low"}, "input": "Another"}),
    ("input_changed", {}, {"input": "Another"}),
    ("input_changed", {"text": {"verbosity": "low"}}, {"text": {"verbosity": "low"}, "instructions": "Be brief."}),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "first", "second"), MISSES)
def test_first_setting_that_differs_is_the_reason(
    server: RunningServer, reason: str, first: dict[str, Any], second: dict[str, Any]
) -> None:
    diagnostics, response = compare(server, create(server, **first), **second)
    assert (diagnostics["type"], diagnostics["reason"]) == ("cache_miss", reason)
    missed, reusable = diagnostics["cache_missed_tokens"], diagnostics["comparison_reusable_tokens"]
    assert missed + reusable == response["usage"]["input_tokens"]
    assert (reusable == 0) == (reason == "model_changed"), "every prompt of a model begins alike"


def test_compacted_context_is_the_reason(server: RunningServer) -> None:
    items = [
        {"role": "user", "content": LONG},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "Go."},
    ]
    first = create(server, input=items)
    compacted = {"context_management": [{"type": "compaction", "compact_threshold": 1000}]}
    diagnostics, response = compare(server, first, input=items, **compacted)
    assert [item["type"] for item in response["output"]] == ["compaction", "message"]
    assert diagnostics["reason"] == "context_compacted"


@pytest.mark.parametrize("store", [True, False])
def test_continued_response_is_a_hit(server: RunningServer, store: bool) -> None:
    first = create(server, store=True)
    second, response = compare(server, first, input="Cached, too.", previous_response_id=first["id"])
    assert second == {"type": "cache_hit"}
    unstored = create(server, store=store)
    assert compare(server, unstored)[0] == {"type": "cache_hit"}, "the same prompt once more"
    assert compare(server, response, previous_response_id=response["id"], input="Cached.")[0] == {"type": "cache_hit"}


def test_settings_that_no_template_shows_change_nothing(server: RunningServer) -> None:
    first = create(server)
    assert compare(server, first, text={"verbosity": "low"})[0] == {"type": "cache_hit"}


def test_alias_is_the_same_model(server: RunningServer) -> None:
    assert compare(server, create(server, model="other"), model="alias")[0] == {"type": "cache_hit"}


def test_prewarmed_prompt_is_compared(server: RunningServer) -> None:
    warm = create(server, prompt_cache_options={"prewarm": True})
    assert compare(server, warm)[0] == {"type": "cache_hit"}


def test_evicted_prefix_is_unavailable(server: RunningServer) -> None:
    """The script says that the engine has no token of the prompt."""
    first = create(server, input="Where is the zoo?")
    assert compare(server, first, input="Where is the zoo?")[0] == {"type": "unavailable"}


@pytest.mark.parametrize("unknown", ["resp_none", "", "chatcmpl-1", "x' OR 1"])
def test_unknown_response_is_not_found(server: RunningServer, unknown: str) -> None:
    fields = {"prompt_cache_options": {"comparison_response_id": unknown}}
    assert create(server, **fields)["prompt_cache_diagnostics"] == {"type": "comparison_response_not_found"}


def test_nothing_is_compared_with_null(server: RunningServer) -> None:
    response = create(server, prompt_cache_options={"comparison_response_id": None})
    assert "prompt_cache_diagnostics" not in response
    assert response["prompt_cache_options"] == {"mode": "implicit", "ttl": "30m"}


def test_response_of_another_key_is_not_found(server: RunningServer) -> None:
    first = create(server)
    assert compare(server, first, "sk-two")[0] == {"type": "comparison_response_not_found"}


def test_response_of_an_earlier_process_is_unavailable(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"store_file": tmp_path / "responses.db"}
    with serve(build_models, **settings) as running:
        first = create(running)
        unstored = create(running, store=False)
    with serve(build_models, **settings) as running:
        assert compare(running, first)[0] == {"type": "unavailable"}
        assert compare(running, unstored)[0] == {"type": "comparison_response_not_found"}


def test_only_the_terminal_event_has_the_diagnosis(server: RunningServer) -> None:
    options = {"comparison_response_id": create(server)["id"]}
    body = {"model": "scripted", "input": "Cached", "stream": True, "prompt_cache_options": options}
    text = httpx.post(f"{server.url}/responses", json=body, headers={"authorization": "Bearer sk-one"}).text
    events = [line for line in text.splitlines() if line.startswith("event: ")]
    with_diagnosis = [line for line in text.splitlines() if '"prompt_cache_diagnostics":{' in line]
    assert len(events) > 4 and len(with_diagnosis) == 1 and '"response.completed"' in with_diagnosis[0]


def test_engine_that_counts_no_cached_tokens_confirms_no_hit() -> None:
    info = EngineInfo(max_model_len=20_000, vocab_size=262_144, capabilities=Capabilities(counts_cached_tokens=False))
    with serve(scripted_registry([{"name": "any", "output": ["Yes."]}], info=info)) as running:
        assert compare(running, create(running))[0] == {"type": "unavailable"}


@needs_weights
def test_missed_tokens_are_those_that_the_engine_computes() -> None:
    engine = ProcessEngine(MODEL_DIR, EngineOptions(device="cpu", threads=1), spawn=ThreadWorker)
    with serve(make_registry(engine, load_model_format())) as running:
        plain: dict[str, Any] = {"model": "antiphon", "temperature": 0, "reasoning": {"effort": "none"}}
        first = create(running, **plain, input="hello")
        continued = {"input": "Thank you.", "previous_response_id": first["id"]}
        diagnostics, response = compare(running, first, **plain, **continued)
        assert diagnostics == {"type": "cache_hit"}
        assert count_cached(response) == first["usage"]["total_tokens"] - 1, "all but the last generated token"

        shared = "The zoo is in the north of the city, and opens at nine. " * 4
        first = create(running, **plain, input=shared + "Where is it?")
        diagnostics, response = compare(running, first, **plain, input=shared + "When does it open?")
        assert diagnostics["cache_missed_tokens"] == response["usage"]["input_tokens"] - count_cached(response)
        assert count_cached(response) > MIN_PREFIX_TOKENS
        diagnostics, response = compare(running, first, **plain, input="When?", tools=[WEATHER])
        reusable = diagnostics["comparison_reusable_tokens"]
        assert 0 < reusable < MIN_PREFIX_TOKENS and count_cached(response) == 0, "so few are computed again"


def count_cached(response: Any) -> int:
    return int(response["usage"]["input_tokens_details"]["cached_tokens"])
