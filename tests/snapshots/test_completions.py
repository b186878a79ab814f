"""Every case as a text completion: its text is the detokenized output, and the complete reply is the sum of its chunks."""

import json
from dataclasses import replace
from typing import Any

import pytest

from antiphon.app.errors import ApiError
from tests.snapshots.cases import CASES, Case
from tests.snapshots.extra_cases import EXTRA_CASES
from tests.snapshots.run_case import CaseResult, make_single_case_registry, read_completion

STEPS = (0, 1, 3)
"""Tokens of a chunk of the engine; 0: the case's own number."""
COMPLETED_CASES = [case for case in (*CASES, *EXTRA_CASES) if not case.refused]
STOP_CASES = [case for case in CASES if case.name in ("stop_string", "half_a_stop_string", "text", "blanks_only")]
ALL_DETAILS = {"logprobs": 2, "return_token_ids": True, "echo": True}


def output_tokens(case: Case) -> list[int]:
    """Returns the tokens of the output's texts, up to a fault or a stall."""
    [model] = make_single_case_registry(case).served
    tokens: list[int] = []
    for entry in case.output:
        if isinstance(entry, str):
            tokens += model.format.encode(entry)
        elif "ids" in entry:
            tokens += entry["ids"]
    ends = [index for index, token in enumerate(tokens) if token in model.format.stop_ids]
    return tokens[: ends[0] + 1] if ends else tokens


def detokenize(case: Case, tokens: list[int]) -> str:
    """Returns the text of the tokens without control tokens, which are in neither API's text."""
    [model] = make_single_case_registry(case).served
    special: Any = model.format.raw_text._vocabulary.special_ids
    data = b"".join(model.format.decode_token(token)[1] for token in tokens if token not in special)
    return data.decode("utf-8", "replace")


def sum_chunks(result: CaseResult) -> dict[int, dict[str, Any]]:
    """Returns the choices that the chunks of a stream add up to, by index."""
    choices: dict[int, dict[str, Any]] = {}
    for chunk in result.data:
        for part in chunk.get("choices", ()):
            choice = choices.setdefault(part["index"], {"text": "", "logprobs": None, "finish_reason": None})
            assert choice["finish_reason"] is None, "nothing follows the finish reason"
            choice["text"] += part["text"]
            for key in ("token_ids", "prompt_token_ids"):
                choice[key] = choice.get(key, []) + part.get(key, [])
            if part["logprobs"] is not None:
                columns = choice["logprobs"] or {key: [] for key in part["logprobs"]}
                choice["logprobs"] = {key: columns[key] + part["logprobs"][key] for key in columns}
            choice |= {key: part[key] for key in ("index", "finish_reason", "stop_reason")}
    return choices


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("case", COMPLETED_CASES, ids=lambda case: case.name)
async def test_text_is_the_detokenized_output_streamed_or_not(case: Case, step: int) -> None:
    result = await read_completion(replace(case, step=step or case.step), n=2, **ALL_DETAILS)
    choices, tokens = sum_chunks(result), output_tokens(case)
    text = detokenize(case, tokens)
    if isinstance(result.reply, ApiError):
        assert case.fails and result.data[-1] == json.loads(result.reply.encoded_body)
        assert all(text.startswith(choice["text"].removeprefix("Go on.")) for choice in choices.values())
        return
    completion = json.loads(result.reply)
    assert list(choices.values()) == completion["choices"] and len(choices) == 2
    for choice in choices.values():
        assert choice["text"] == f"Go on.{text}"
        assert choice["token_ids"][: len(tokens)] == tokens and len(choice["token_ids"]) <= len(tokens) + 1
        assert choice["finish_reason"] == ("length" if case.finish == "length" or case.cancel else "stop")
    assert result.data[-1]["choices"] == [] and result.data[-1]["usage"] == completion["usage"]
    assert {(chunk["id"], chunk["object"]) for chunk in result.data} == {(completion["id"], "text_completion")}
    check_details(completion)


def check_details(completion: dict[str, Any]) -> None:
    """Checks that tokens, offsets and usage agree."""
    usage = completion["usage"]
    assert usage["completion_tokens"] == sum(len(choice["token_ids"]) for choice in completion["choices"])
    for choice in completion["choices"]:
        columns, num_prompt = choice["logprobs"], len(choice["prompt_token_ids"])
        assert usage["prompt_tokens"] == num_prompt
        assert {len(column) for column in columns.values()} == {num_prompt + len(choice["token_ids"])}
        assert columns["token_logprobs"][0] is None and None not in columns["token_logprobs"][1:]
        offsets = columns["text_offset"]
        assert offsets == sorted(offsets) and offsets[0] == 0 and offsets[-1] <= len(choice["text"])
        ends = [*offsets[1:], len(choice["text"])]
        for token, start, end in zip(columns["tokens"], offsets, ends, strict=True):
            text = choice["text"][start:end]
            assert text in (token, "") or token.startswith("bytes:"), "an offset is where its token begins"


@pytest.mark.parametrize("stop", ["\n", "e", "\n\n", "lo t"])
@pytest.mark.parametrize("case", STOP_CASES, ids=lambda case: case.name)
async def test_stop_string_cuts_the_text_at_its_first_match(case: Case, stop: str) -> None:
    """Blanks are text, so a stop string in leading blanks counts; what is returned does not depend on the chunks."""
    text = detokenize(case, output_tokens(case))
    for step in STEPS:
        result = await read_completion(replace(case, step=step or case.step), stop=[stop], **ALL_DETAILS)
        assert not isinstance(result.reply, ApiError)
        [choice] = json.loads(result.reply)["choices"]
        assert choice["text"].removeprefix("Go on.") == text.partition(stop)[0]
        assert choice["stop_reason"] == (stop if stop in text else None)
        assert choice == next(iter(sum_chunks(result).values()))
        with_stop = await read_completion(
            replace(case, step=step or case.step), stop=[stop], include_stop_str_in_output=True
        )
        assert not isinstance(with_stop.reply, ApiError)
        [choice] = json.loads(with_stop.reply)["choices"]
        assert choice["text"] == text.partition(stop)[0] + (stop if stop in text else "")


async def test_refused_turn_is_an_error() -> None:
    [case] = [case for case in CASES if case.refused]
    result = await read_completion(case)
    assert isinstance(result.reply, ApiError) and result.reply.status == 429 and not result.frames
