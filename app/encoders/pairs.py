"""Parsers of `POST /v1/rerank` and `POST /v1/score`."""

from collections.abc import Mapping
from typing import Any

from antiphon.app.encoders.bodies import RerankBody, ScoreBody
from antiphon.app.encoders.embedding_request import read_truncation
from antiphon.app.encoders.encoder_request import EncoderRequest
from antiphon.app.errors import invalid_value
from antiphon.app.registry.model_registry import ModelRegistry
from antiphon.app.requests.fields import decode_body, refuse_unsupported
from antiphon.app.requests.fields.checks import require_value


def read_rerank_request(sent: Mapping[str, Any], models: ModelRegistry) -> tuple[EncoderRequest, list[str]]:
    """Returns the request, whose pairs are the query and each document, and the texts of the documents."""
    body = decode_body(RerankBody, sent)
    model = models.find_encoder(body.model, "rerank")
    query, documents = require_value(body.query, "query"), require_value(body.documents, "documents")
    refuse_unsupported(body)
    texts = [document["text"] if isinstance(document, dict) else document for document in documents]
    request = EncoderRequest(
        model=model,
        inputs=[(query, text) for text in texts],
        paths=[f"documents[{index}]" for index in range(len(texts))],
        max_tokens=read_truncation(body, model),
    )
    return request, texts


def read_score_request(sent: Mapping[str, Any], models: ModelRegistry) -> EncoderRequest:
    """Returns the request. One text is paired with each of the others."""
    body = decode_body(ScoreBody, sent)
    model = models.find_encoder(body.model, "rerank")
    texts = require_value(body.text_1, "text_1"), require_value(body.text_2, "text_2")
    refuse_unsupported(body)
    first, second = ([text] if isinstance(text, str) else list(text) for text in texts)
    is_single = isinstance(body.text_2, str)
    if len(first) == 1:
        first = first * len(second)
    if len(first) != len(second):
        message = "Invalid 'text_1': it must be one text, or have as many as 'text_2'."
        raise invalid_value("text_1", message)
    return EncoderRequest(
        model=model,
        inputs=list(zip(first, second, strict=True)),
        paths=["text_2"] if is_single else [f"text_2[{index}]" for index in range(len(second))],
        max_tokens=read_truncation(body, model),
    )
