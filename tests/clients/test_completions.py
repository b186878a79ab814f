"""The openai SDK on `/v1/completions` over a real socket: prompts of every kind, streams, choices, scores, errors."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import openai
import pytest

from antiphon.app.registry.model_registry import ModelRegistry, ServedModel
from antiphon.engine.embedded import MODEL_DIR
from antiphon.engine.options import EngineOptions
from antiphon.engine.process.client import ProcessEngine
from antiphon.harmony.detection.detect import load_format
from tests.clients.sdk_helpers import open_sdk, post
from tests.engine.threaded_engine import ThreadWorker
from tests.serving import RunningServer, scripted_registry, serve

SCRIPT: list[dict[str, Any]] = [
    {"name": "middle", "when": ["<|fim_prefix|>"], "output": ["filled"]},
    {"name": "fault", "when": ["[fault]"], "output": ["Half", {"fault": "the accelerator is on fire"}]},
    {"name": "refused", "when": ["[refused]"], "output": [{"refuse": "full", "code": "server_is_overloaded"}]},
    {"name": "stalled", "when": ["[stall]"], "output": ["Half", {"stall": True}]},
    {"name": "long", "when": ["[long]"], "output": ["x" * 40]},
    {"name": "special", "when": ["[special]"], "output": ["a<think>b</think>", "<|endoftext|>", "c"]},
    {"name": "upper", "when": ["UP"], "output": [" AND", " AWAY\n"]},
    {"name": "text", "output": ["\n", " time", " there was"]},
    {"name": "other", "output": [" a"]},
    {"name": "last", "output": [" é😀"]},
]
SERVER = partial(serve, SCRIPT)


@pytest.fixture
def fresh_client() -> Iterator[openai.OpenAI]:
    """A client of a server whose script starts over."""
    with serve(SCRIPT) as running, open_sdk(running) as (sdk, _):
        yield sdk


def ask(prompt: Any, **more: Any) -> dict[str, Any]:
    return {"model": "scripted", "prompt": prompt, "max_tokens": 100, **more}


def read_stream(client: openai.OpenAI, **request: Any) -> tuple[dict[int, str], list[Any]]:
    """Returns the text of each choice, and the chunks."""
    chunks = list(client.completions.create(**request, stream=True))
    texts: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
    return texts, chunks


def test_one_prompt(fresh_client: openai.OpenAI) -> None:
    reply = fresh_client.completions.create(**ask("Once upon a"))
    [choice] = reply.choices
    assert (choice.text, choice.finish_reason, choice.logprobs) == ("\n time there was", "stop", None)
    assert reply.object == "text_completion" and reply.id.startswith("cmpl-") and reply.model == "scripted"
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens) == (11, 17, 28)


def test_default_limit_is_16_tokens(client: openai.OpenAI) -> None:
    [choice] = client.completions.create(model="scripted", prompt="[long]").choices
    assert (choice.text, choice.finish_reason) == ("x" * 16, "length")


@pytest.mark.parametrize("prompt", ["UP", list(b"UP"), ["UP"], [list(b"UP")]])
def test_every_kind_of_prompt_is_the_same(client: openai.OpenAI, prompt: Any) -> None:
    [choice] = client.completions.create(**ask(prompt, echo=True)).choices
    assert choice.text == "UP AND AWAY\n"
    assert read_stream(client, **ask(prompt, echo=True))[0] == {0: "UP AND AWAY\n"}


def test_choices_of_several_prompts_are_numbered_by_prompt(fresh_client: openai.OpenAI) -> None:
    request = ask(["UP one", "[long]", "UP two"], n=2, max_tokens=5)
    reply = fresh_client.completions.create(**request)
    assert [(choice.index, choice.text) for choice in reply.choices] == [
        *((0, " AND "), (1, " AND "), (2, "xxxxx"), (3, "xxxxx"), (4, " AND "), (5, " AND ")),
    ]
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (18, 30), "each prompt counts once"
    texts, chunks = read_stream(fresh_client, **request, stream_options={"include_usage": True})
    assert texts == {choice.index: choice.text for choice in reply.choices}
    assert chunks[-1].choices == [] and chunks[-1].usage == reply.usage
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_usage_of_every_chunk(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True, "include_obfuscation": True}
    _, chunks = read_stream(client, **ask(["UP", "UP"]), stream_options=options)
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts) and counts[0] >= 1 and counts[-2] == counts[-1] == 22
    assert chunks[-1].usage.prompt_tokens == 4
    assert all(chunk.model_extra["obfuscation"] is not None for chunk in chunks[:-1])


def test_best_of_returns_the_most_likely_choices(fresh_client: openai.OpenAI) -> None:
    """The script invents lower scores for later positions up to the eighth, so its shortest text is the best."""
    reply = fresh_client.completions.create(**ask("Once upon a", n=2, best_of=3, logprobs=0))
    assert [choice.index for choice in reply.choices] == [0, 1]
    scores = [scores_of(choice) for choice in reply.choices]
    means = [sum(column) / len(column) for column in scores]
    assert means == sorted(means, reverse=True)
    assert [choice.text for choice in reply.choices] == [" a", "\n time there was"]
    assert reply.usage is not None and reply.usage.completion_tokens == 17 + 3 + 8, "all that were sampled count"


def scores_of(choice: Any) -> list[float]:
    scores: list[float] = choice.logprobs.token_logprobs
    return scores


def test_log_probabilities_in_columns(client: openai.OpenAI) -> None:
    [choice] = client.completions.create(**ask("UP", logprobs=2, echo=True, max_tokens=2)).choices
    columns = choice.logprobs
    assert columns is not None and columns.token_logprobs is not None and columns.top_logprobs is not None
    assert columns.tokens == ["U", "P", " ", "A"] and columns.text_offset == [0, 1, 2, 3]
    assert columns.token_logprobs == [None, -0.25, -0.125, -0.25]
    assert columns.top_logprobs[:2] == [None, {"P": -0.25, "Q": -3.25}]
    extra: Any = {"return_tokens_as_token_ids": True}
    [choice] = client.completions.create(**ask("UP", logprobs=1, max_tokens=1, extra_body=extra)).choices
    assert choice.logprobs is not None and choice.logprobs.tokens == ["token_id:32"]
    assert choice.logprobs.top_logprobs == [{"token_id:32": -0.125}]


def test_prompt_is_scored_without_any_output(client: openai.OpenAI) -> None:
    reply = client.completions.create(**ask("UP", logprobs=1, echo=True) | {"max_tokens": 0})
    [choice] = reply.choices
    assert (choice.text, choice.finish_reason) == ("UP", "length")
    assert choice.logprobs is not None and choice.logprobs.token_logprobs == [None, -0.25]
    assert reply.usage is not None and reply.usage.completion_tokens == 0


def test_candidates_of_the_prompts_positions(client: openai.OpenAI) -> None:
    [choice] = client.completions.create(
        **ask("UP", extra_body={"prompt_logprobs": 1, "return_token_ids": True})
    ).choices
    extra = choice.model_extra or {}
    assert extra["prompt_logprobs"] == [None, {"80": {"logprob": -0.25, "rank": 1, "decoded_token": "P"}}]
    assert extra["prompt_token_ids"] == list(b"UP") and extra["token_ids"][:4] == list(b" AND")


def test_stop_strings_and_tokens(client: openai.OpenAI) -> None:
    def complete(**more: Any) -> tuple[str, Any]:
        [choice] = client.completions.create(**ask("UP", **more)).choices
        assert choice.finish_reason == "stop"
        return choice.text, (choice.model_extra or {})["stop_reason"]

    assert complete(stop=" AW") == (" AND", " AW")
    assert complete(stop=[" "]) == ("", " "), "a stop string in leading blanks counts"
    assert complete(stop=" AW", extra_body={"include_stop_str_in_output": True}) == (" AND AW", " AW")
    assert complete(extra_body={"stop_token_ids": [ord("D")]}) == (" AND", ord("D"))
    assert complete() == (" AND AWAY\n", None)


def test_special_tokens_in_the_output(client: openai.OpenAI) -> None:
    """Reasoning markers are text. Control tokens are text on request only."""
    [choice] = client.completions.create(**ask("[special]")).choices
    assert choice.text == "a<think>b</think>"
    extra: Any = {"skip_special_tokens": False, "ignore_eos": True}
    [choice] = client.completions.create(**ask("[special]", extra_body=extra)).choices
    assert choice.text == "a<think>b</think><|endoftext|>c<|im_end|>"


def test_suffix_needs_fill_in_the_middle_tokens(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**ask("a", suffix="b"))
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "suffix")
    assert client.completions.create(**ask("UP", suffix="")).choices[0].text == " AND AWAY\n"


def test_truncated_prompt_and_own_id(client: openai.OpenAI) -> None:
    extra: Any = {"truncate_prompt_tokens": 2, "request_id": "mine"}
    reply = client.completions.create(**ask("[fault] UP", echo=True, extra_body=extra))
    assert (reply.choices[0].text, reply.id) == ("UP AND AWAY\n", "cmpl-mine")


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"prompt": ""}, "invalid_prompt", "prompt"),
        ({"prompt": [1, 300_000]}, "invalid_value", "prompt[1]"),
        ({"prompt": "a" * 131_072}, "context_length_exceeded", "prompt"),
        ({"n": 2, "best_of": 1}, "invalid_value", "best_of"),
        ({"temperature": 3}, "decimal_above_max_value", "temperature"),
        ({"extra_body": {"use_beam_search": True}}, "unsupported_parameter", "use_beam_search"),
        ({"extra_body": {"guided_regex": "("}}, "invalid_grammar", "guided_regex"),
        ({"extra_body": {"guided_json": {"type": "nonsense"}}}, "invalid_json_schema", "guided_json"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_invalid_request_is_an_error_before_any_chunk(
    client: openai.OpenAI, fields: dict[str, Any], code: str, param: str, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**ask("a") | fields, stream=stream)
    assert (caught.value.code, caught.value.param) == (code, param)


def test_failed_turn_is_an_error(server: RunningServer, client: openai.OpenAI) -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        client.completions.create(**ask(["UP", "[fault]"]))
    assert caught.value.code == "server_error"
    texts: list[str] = []
    stream = client.completions.create(**ask("[fault]"), stream=True)
    with pytest.raises(openai.APIError, match="the accelerator is on fire"):
        texts.extend(chunk.choices[0].text for chunk in stream)
    assert "Half".startswith("".join(texts))
    frames = post(f"{server.url}/completions", json=ask("[fault]", stream=True)).text.split("\n\n")
    assert frames[-3].startswith('data: {"error":') and frames[-2:] == ["data: [DONE]", ""]


def test_if_one_prompt_is_refused_none_runs(server: RunningServer, client: openai.OpenAI) -> None:
    for prompt in (["[stall]", "[refused]"], ["[stall]", ""]):
        with pytest.raises(openai.APIStatusError):
            client.completions.create(**ask(prompt, n=2))
        assert server.engine.stats().running == server.engine.stats().waiting == 0
        assert server.context.turn_manager.num_running == 0
        assert server.context.capacity.free_slots(server.engine) == server.engine.capacity()


def test_prompts_above_the_capacity_are_refused_together() -> None:
    with serve(scripted_registry(SCRIPT, max_num_seqs=2, max_waiting=1)) as running, open_sdk(running) as (sdk, _):
        with pytest.raises(openai.RateLimitError):
            sdk.completions.create(**ask(["UP", "UP"], n=2))
        assert len(sdk.completions.create(**ask(["UP", "UP", "UP"])).choices) == 3


def test_embedded_model_completes_a_prompt() -> None:
    engine = ProcessEngine(MODEL_DIR, EngineOptions(threads=1), spawn=ThreadWorker)
    model = ServedModel(names=("antiphon",), engine=engine, format=load_format(MODEL_DIR).format, created=0)
    prompt = "<|im_start|>user\nRepeat exactly: green tea<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    with serve(ModelRegistry([model])) as running, open_sdk(running) as (sdk, _):
        request: dict[str, Any] = {"model": "antiphon", "prompt": prompt, "temperature": 0, "max_tokens": 40}
        [choice] = sdk.completions.create(**request).choices
        assert choice.text == "green tea" and choice.finish_reason == "stop"
        scored = sdk.completions.create(**request, echo=True, logprobs=1)
        [choice] = scored.choices
        assert choice.text == f"{prompt}green tea" and choice.logprobs is not None
        assert scored.usage is not None and len(choice.logprobs.tokens or ()) == scored.usage.total_tokens
        [choice] = sdk.completions.create(**request | {"max_tokens": 0}, echo=True, logprobs=1).choices
        assert choice.text == prompt and choice.logprobs is not None
        assert (
            choice.logprobs.token_logprobs
            == (scored.choices[0].logprobs.token_logprobs or [])[: len(choice.logprobs.tokens or ())]
        )
        assert read_stream(sdk, **request)[0] == {0: "green tea"}
        [choice] = sdk.completions.create(**request, extra_body={"guided_choice": ["yes", "no"]}).choices
        assert choice.text in ("yes", "no")
        [choice] = sdk.completions.create(**request, extra_body={"min_tokens": 30, "stop_token_ids": [0]}).choices
        assert len(choice.text) > len("green tea")
