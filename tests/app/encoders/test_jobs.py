"""Jobs of encoders: limits of each input and of all together, and the place that an error names."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from antiphon.app.encoders import jobs
from antiphon.app.encoders.encoder_request import EncoderRequest
from antiphon.app.encoders.jobs import TEXTS_PER_CALL, EncoderResult, run_request
from antiphon.app.errors import ApiError
from antiphon.app.registry.model_registry import EncoderModel
from antiphon.engine.encoder_messages import EncoderInput
from antiphon.engine.protocol import Chunk, EngineInfo, Fault, Job, OnChunk
from antiphon.harmony.tokens.vocabulary import TokenizeError
from tests.app.requests.request_builders import summarize_error

MAX_MODEL_LEN = 5


class LetterTokenizer:
    """A tokenizer with one token for each letter. It cuts nothing below two tokens, and cannot encode `?`."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def encode_texts(self, texts: Sequence[str], max_tokens: int | None = None) -> list[EncoderInput]:
        self.calls.append(len(texts))
        if any("?" in text for text in texts):
            raise TokenizeError("no token for it")
        limit = None if max_tokens is None else max(max_tokens, 2)
        return [EncoderInput(tuple(map(ord, text))[:limit]) for text in texts]


class CountingEngine:
    """An engine whose vector of an input is the number of its tokens. The order of the vectors is reversed."""

    info = EngineInfo(max_model_len=MAX_MODEL_LEN, vocab_size=1000)

    def __init__(self, fault: Fault | None = None) -> None:
        self._fault = fault

    def unready_reason(self) -> str | None:
        return None

    async def wait_ready(self) -> None:
        """Returns at once."""

    async def generate(self, job: Job, on_chunk: OnChunk) -> None:
        inputs = list(enumerate(job.encoder_inputs))
        vectors = tuple((index, bytes([len(each.tokens)])) for index, each in reversed(inputs))
        on_chunk(Chunk(vectors=vectors[:1]))
        on_chunk(Chunk(vectors=vectors[1:], finish="error" if self._fault else "stop", fault=self._fault))


async def run_inputs(
    *inputs: Any, tokenizer: LetterTokenizer | None = None, fault: Fault | None = None, **options: Any
) -> EncoderResult:
    model = EncoderModel(
        names=("m",), kind="embedding", engine=cast("Any", CountingEngine(fault)),
        tokenizer=cast("Any", tokenizer or LetterTokenizer()), created=1,
    )  # fmt: skip
    paths = [f"input[{index}]" for index in range(len(inputs))]
    return await run_request(EncoderRequest(model=model, inputs=inputs, paths=paths, **options))


async def test_results_have_the_order_of_the_inputs() -> None:
    tokenizer = LetterTokenizer()
    result = await run_inputs("a", [1, 2], "abc", [1, 2, 3, 4], "ab", tokenizer=tokenizer)
    assert [list(vector) for vector in result.vectors] == [[1], [2], [3], [4], [2]]
    assert result.num_tokens == 12
    assert tokenizer.calls == [3]


async def test_texts_are_tokenized_in_calls_of_a_limited_size() -> None:
    tokenizer = LetterTokenizer()
    result = await run_inputs(*["ab"] * (2 * TEXTS_PER_CALL + 3), tokenizer=tokenizer)
    assert tokenizer.calls == [TEXTS_PER_CALL, TEXTS_PER_CALL, 3]
    assert result.num_tokens == 2 * len(result.vectors)


FULL_CALL = ["a"] * TEXTS_PER_CALL


@pytest.mark.parametrize(
    ("inputs", "code", "param"),
    [
        (["a", "x" * (MAX_MODEL_LEN + 1)], "context_length_exceeded", "input[1]"),
        (["a", [1] * (MAX_MODEL_LEN + 1)], "context_length_exceeded", "input[1]"),
        ([*FULL_CALL, "a", "x" * (MAX_MODEL_LEN + 1)], "context_length_exceeded", f"input[{TEXTS_PER_CALL + 1}]"),
        (["a", ""], "invalid_value", "input[1]"),
        ([*FULL_CALL, ""], "invalid_value", f"input[{TEXTS_PER_CALL}]"),
        ([*FULL_CALL, "?"], "invalid_prompt", f"input[{TEXTS_PER_CALL}]"),
    ],
)
async def test_error_names_the_input_that_has_it(inputs: list[Any], code: str, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        await run_inputs(*inputs)
    assert summarize_error(caught.value) == (400, code, param)


async def test_input_as_long_as_the_model_allows_is_computed() -> None:
    assert (await run_inputs("x" * MAX_MODEL_LEN, [1] * MAX_MODEL_LEN)).num_tokens == 2 * MAX_MODEL_LEN


async def test_tokens_of_all_inputs_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MAX_REQUEST_TOKENS", 6)
    assert (await run_inputs("abc", [1, 2, 3])).num_tokens == 6
    with pytest.raises(ApiError) as caught:
        await run_inputs("abc", [1, 2, 3], "a")
    assert summarize_error(caught.value) == (400, "max_tokens_per_request", "input")
    with pytest.raises(ApiError):
        await run_inputs("abc", "abcd")


async def test_inputs_are_cut() -> None:
    result = await run_inputs("abcdefg", [1, 2, 3, 4, 5, 6, 7], "a", max_tokens=3)
    assert [list(vector) for vector in result.vectors] == [[3], [3], [1]]
    result = await run_inputs("abcdefg", max_tokens=2)
    assert result.num_tokens == 2, "exactly the room that the special tokens need"


async def test_limit_without_room_for_the_special_tokens_is_refused() -> None:
    with pytest.raises(ApiError) as caught:
        await run_inputs("abcdefg", max_tokens=1)
    assert summarize_error(caught.value) == (400, "invalid_value", "truncate_prompt_tokens")
    assert (await run_inputs([1, 2, 3], max_tokens=1)).num_tokens == 1, "token ids get no special tokens"


async def test_fault_of_the_engine_is_the_error() -> None:
    with pytest.raises(ApiError) as caught:
        await run_inputs("a", "b", fault=Fault(code="server_error", message="broken"))
    assert (caught.value.status, caught.value.code) == (500, "server_error")
