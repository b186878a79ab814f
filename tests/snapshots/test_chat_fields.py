"""Every case as a chat with vLLM's fields: the whole reply is the sum of the chunks, and its details agree."""

import json
from dataclasses import replace
from typing import Any

import pytest

from antiphon.app.errors import ApiError
from antiphon.harmony.format import ModelFormat
from tests.snapshots.cases import CASES, WEATHER_CALL, Case
from tests.snapshots.chunkings import output_tokens
from tests.snapshots.extra_cases import EXTRA_CASES
from tests.snapshots.run_case import CaseResult, load_case_format, read_chat
from tests.snapshots.stream_sums import drop_empty, sum_chat_chunks

STEPS = (0, 1, 3)
"""Tokens of a chunk of the engine; 0: the case's own number."""
CHAT_CASES = [case for case in (*CASES, *EXTRA_CASES) if not case.refused and "chat" in case.faces]
ALL_FIELDS: dict[str, Any] = {
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
    "logprobs": True,
    "top_logprobs": 1,
    "include_stop_str_in_output": True,
    "echo": True,
    "request_id": "mine",
    "messages": [{"role": "user", "content": "Go on."}, {"role": "assistant", "content": "Well: "}],
}


async def read_with_fields(case: Case, step: int, **fields: Any) -> CaseResult:
    return await read_chat(replace(case, step=step or case.step, chat=case.chat | fields))


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("case", CHAT_CASES, ids=lambda case: case.name)
async def test_whole_reply_is_the_sum_of_the_chunks(case: Case, step: int) -> None:
    result = await read_with_fields(case, step, **ALL_FIELDS)
    if isinstance(result.reply, ApiError):
        assert result.data[-1] == json.loads(result.reply.encoded_body)
        return
    completion, chunks = json.loads(result.reply), result.data
    prompts = [chunk.pop("prompt_token_ids") for chunk in chunks if "prompt_token_ids" in chunk]
    assert prompts == [completion.pop("prompt_token_ids")]
    assert len(prompts[0]) == completion["usage"]["prompt_tokens"] and completion["id"] == "chatcmpl-mine"
    assert drop_empty(sum_chat_chunks(chunks)) == drop_empty(completion)
    for choice in completion["choices"]:
        assert (choice["message"]["content"] or "").startswith("Well: ")
        for entry in (choice["logprobs"] or {}).get("content") or []:
            check_names(entry, choice["token_ids"], load_case_format(case.dialect))
    counted = sum(len(choice["token_ids"]) for choice in completion["choices"])
    assert counted == completion["usage"]["completion_tokens"]


def check_names(entry: dict[str, Any], token_ids: list[int], model_format: ModelFormat) -> None:
    """Checks that a scored token, and the most likely tokens in its place, are written as ids."""
    assert int(entry["token"].removeprefix("token_id:")) in token_ids
    for scored in (entry, *entry["top_logprobs"]):
        token = int(scored["token"].removeprefix("token_id:"))
        assert list(model_format.decode_token(token)[1]) == scored["bytes"]


@pytest.mark.parametrize("case", CHAT_CASES, ids=lambda case: case.name)
async def test_token_ids_are_those_that_the_model_generated(case: Case) -> None:
    result = await read_with_fields(case, 0, return_token_ids=True)
    assert isinstance(result.reply, ApiError) == case.fails
    if isinstance(result.reply, ApiError):
        return
    model_format = load_case_format(case.dialect)
    tokens = output_tokens(case, model_format)
    for choice in json.loads(result.reply)["choices"]:
        token_ids = choice["token_ids"]
        if case.name == "second_call_when_parallel_calls_are_off":
            assert WEATHER_CALL in model_format.decode(token_ids) and token_ids == tokens[: len(token_ids)] != tokens
        else:  # the engine may end the turn with a token that the script does not have
            ending = token_ids[len(tokens) :]
            assert token_ids == tokens + ending and (not ending or ending[0] in model_format.end_ids)


@pytest.mark.parametrize("case", CHAT_CASES, ids=lambda case: case.name)
async def test_details_do_not_change_what_a_reply_says(case: Case) -> None:
    plain, detailed = await read_with_fields(case, 0), await read_with_fields(case, 0, return_token_ids=True)
    assert isinstance(plain.reply, ApiError) == isinstance(detailed.reply, ApiError)
    if not isinstance(plain.reply, ApiError) and not isinstance(detailed.reply, ApiError):
        replies = [json.loads(plain.reply), json.loads(detailed.reply)]
        assert "prompt_token_ids" not in replies[0]
        del replies[1]["prompt_token_ids"]
        assert not any("token_ids" in choice for choice in replies[0]["choices"])
        for choice in replies[1]["choices"]:
            del choice["token_ids"]
        assert replies[0] == replies[1]
