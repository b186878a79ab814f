"""`/v1/embeddings`, `/v1/rerank` and `/v1/score`: texts to vectors or scores, without events and without a store."""

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from litestar.response import Response

from antiphon.app.context import AnyRequest, request_models, server_context
from antiphon.app.encoders.bodies import EmbeddingsBody, RerankBody, ScoreBody
from antiphon.app.encoders.embedding_request import read_embeddings_request
from antiphon.app.encoders.encoder_request import EncoderRequest
from antiphon.app.encoders.jobs import EncoderResult, run_request
from antiphon.app.encoders.pairs import read_rerank_request, read_score_request
from antiphon.app.encoders.replies import embeddings_body, rerank_body, score_body
from antiphon.app.errors import report_engine_errors
from antiphon.app.http.body_parsing import parse_body, run_parser
from antiphon.app.http.endpoints.endpoint import endpoint
from antiphon.app.http.request_state import request_state
from antiphon.app.models.status import blocked_reason
from antiphon.app.registry.model_registry import ModelRegistry
from antiphon.app.route_helpers.engine_ready import wait_until_known
from antiphon.app.route_helpers.http_replies import cancel_on_disconnect, json_reply
from antiphon.app.tracing.conventions import EMBEDDINGS_OPERATION, RERANK_OPERATION
from antiphon.engine.embeddings.repository import EncoderKind

T = TypeVar("T")


@endpoint("POST", "/v1/embeddings", body=EmbeddingsBody, counts=True, batch=True)
async def create_embeddings(request: AnyRequest) -> Response[Any]:
    """Returns a vector for each input."""
    body, parsed = await _read_request(request, "embedding", read_embeddings_request)
    result = await _run(request, parsed)
    as_base64 = body.get("encoding_format") == "base64"
    return json_reply(await embeddings_body(result, parsed.model.names[0], as_base64=as_base64))


@endpoint("POST", "/v1/rerank", aliases=("/rerank", "/v2/rerank"), body=RerankBody, counts=True)
async def rerank_documents(request: AnyRequest) -> Response[Any]:
    """Returns documents in the order of their relevance to a query."""
    body, (parsed, texts) = await _read_request(request, "rerank", read_rerank_request)
    result = await _run(request, parsed)
    shown = None if body.get("return_documents") is False else texts
    request_id = request_state(request.scope).request_id
    return json_reply(rerank_body(result, parsed.model.names[0], request_id, shown, body.get("top_n") or 0))


@endpoint("POST", "/v1/score", aliases=("/score",), body=ScoreBody, counts=True)
async def score_pairs(request: AnyRequest) -> Response[Any]:
    """Returns a score for each pair of texts."""
    _, parsed = await _read_request(request, "rerank", read_score_request)
    result = await _run(request, parsed)
    return json_reply(score_body(result, parsed.model.names[0], request_state(request.scope).request_id))


async def _run(request: AnyRequest, parsed: EncoderRequest) -> EncoderResult:
    """Runs a request, charges its tokens to the API key, and makes its span."""
    state, context, model = request_state(request.scope), server_context(request), parsed.model.names[0]
    started = time.monotonic()
    result = await cancel_on_disconnect(request, run_request(parsed))
    context.meter.charge_input(state.key, model, result.num_tokens)
    if context.tracer is not None and state.trace is not None:
        operation = EMBEDDINGS_OPERATION if parsed.model.kind == "embedding" else RERANK_OPERATION
        context.tracer.end_encoding(state.trace, operation, model, started, result.num_tokens)
    return result


async def _read_request(
    request: AnyRequest, kind: EncoderKind, read: Callable[[dict[str, Any], ModelRegistry], T]
) -> tuple[dict[str, Any], T]:
    """Returns the body, and what `read` makes of it."""
    body = await parse_body(await request.body())
    await _wait_until_known(request, body, kind)
    with report_engine_errors():
        size = request_state(request.scope).body_bytes
        return body, await run_parser(size, read, body, request_models(request))


async def _wait_until_known(request: AnyRequest, body: Mapping[str, Any], kind: EncoderKind) -> None:
    """Waits for the first use of a model that is loaded on demand. The parser reports a name that is wrong."""
    name, models = body.get("model"), request_models(request)
    candidates = [model for model in models.encoders if model.kind == kind and (name is None or name in model.names)]
    if candidates and blocked_reason(candidates[0].engine) is None:
        await wait_until_known(request, candidates[0])
