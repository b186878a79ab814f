"""Runs a request on an embedding or reranking model: tokenizes its inputs, checks their lengths, collects results."""

import secrets

from msgspec import Struct

from antiphon.app.encoders.bodies import MAX_REQUEST_TOKENS, too_many_tokens
from antiphon.app.encoders.encoder_request import EncoderRequest
from antiphon.app.errors import RETRY_AFTER_S, ApiError, invalid_value, report_engine_errors
from antiphon.app.models.status import blocked_reason
from antiphon.app.sandbox.cpu_limit import run_with_cpu_limit
from antiphon.engine.encoder_messages import EncoderInput
from antiphon.engine.protocol import Chunk, EngineError, Fault, Job
from antiphon.harmony.tokens.vocabulary import TokenizeError

TOKENIZE_CPU_LIMIT_S = 10.0
"""Seconds of CPU time for the tokenization of a request."""
TEXTS_PER_CALL = 64
"""Number of texts per call of the tokenizer. Between two calls, the limits are checked."""


class EncoderResult(Struct, frozen=True):
    """Results of a request. `vectors` holds little-endian float32 numbers for each input."""

    vectors: list[bytes]
    num_tokens: int


async def run_request(request: EncoderRequest) -> EncoderResult:
    """Computes all results. Cancels the job if it is cancelled itself. Raises `ApiError`."""
    engine = request.model.engine
    reason = blocked_reason(engine)
    if reason is not None:
        retry = (("retry-after", str(RETRY_AFTER_S)),)
        raise ApiError(503, "engine_unavailable", f"The model is not ready: {reason}.", headers=retry)
    with report_engine_errors():
        await engine.wait_ready()  # before anything else is done for an excess request
    inputs = await _tokenize_in_thread(request)
    vectors: list[bytes] = [b""] * len(inputs)
    faults: list[Fault] = []

    def on_chunk(chunk: Chunk) -> None:
        for index, vector in chunk.vectors:
            vectors[index] = vector
        if chunk.fault is not None:
            faults.append(chunk.fault)

    job = Job(id=secrets.token_hex(12), tokens=(), encoder_inputs=tuple(inputs), vector_options=request.options)
    with report_engine_errors():
        await engine.generate(job, on_chunk)
        if faults:
            raise EngineError.from_fault(faults[0])
    return EncoderResult(vectors, sum(len(each.tokens) for each in inputs))


async def _tokenize_in_thread(request: EncoderRequest) -> list[EncoderInput]:
    try:
        return await run_with_cpu_limit(TOKENIZE_CPU_LIMIT_S, lambda: _tokenize_inputs(request))
    except TimeoutError:
        path = request.paths[0].partition("[")[0]
        raise ApiError(400, "prompt_too_complex", "Tokenizing the input exceeded the time limit.", path) from None


def _tokenize_inputs(request: EncoderRequest) -> list[EncoderInput]:
    """Returns the token ids of all inputs. Raises `ApiError` for one that is empty or too long."""
    info = request.model.engine.info
    result: list[EncoderInput] = []
    num_tokens = 0
    for start in range(0, len(request.inputs), TEXTS_PER_CALL):
        part = _tokenize_part(request, start)
        for path, each in zip(request.paths[start:], part, strict=False):
            if not each.tokens:
                raise ApiError(400, "invalid_value", f"Invalid '{path}': it has no tokens.", path)
            if len(each.tokens) > info.max_model_len:
                raise _too_long(info.max_model_len, len(each.tokens), path)
            num_tokens += len(each.tokens)
            if num_tokens > MAX_REQUEST_TOKENS:
                raise too_many_tokens(path.partition("[")[0])
        result += part
    return result


def _tokenize_part(request: EncoderRequest, start: int) -> list[EncoderInput]:
    inputs, limit = request.inputs[start : start + TEXTS_PER_CALL], request.max_tokens
    texts = [each for each in inputs if not isinstance(each, list)]
    try:
        encoded = request.model.tokenizer.encode_texts(texts, limit)
    except TokenizeError as error:
        raise ApiError(400, "invalid_prompt", str(error), request.paths[start]) from None
    if limit is not None and any(len(each.tokens) > limit for each in encoded):
        message = "Invalid 'truncate_prompt_tokens': it leaves no room for the special tokens."
        raise invalid_value("truncate_prompt_tokens", message)
    remaining = iter(encoded)
    return [EncoderInput(tuple(each[:limit])) if isinstance(each, list) else next(remaining) for each in inputs]


def _too_long(limit: int, length: int, path: str) -> ApiError:
    message = f"This model's maximum context length is {limit} tokens, but '{path}' has {length}."
    return ApiError(400, "context_length_exceeded", message, path)
