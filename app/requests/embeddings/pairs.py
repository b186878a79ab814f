"""Parsers of `POST /v1/rerank` and `POST /v1/score`."""

from collections.abc import Mapping
from typing import Any

from antiphon.app.base.errors import invalid_value, missing_field
from antiphon.app.model_registry import ModelRegistry
from antiphon.app.requests.embeddings.encoder_request import EncoderRequest
from antiphon.app.requests.embeddings.request import read_truncation
from antiphon.app.requests.fields import RequestField, check_fields, refuse_unsupported
from antiphon.app.requests.fields.embeddings import RERANK_FIELDS, SCORE_FIELDS


def read_rerank_request(body: Mapping[str, Any], models: ModelRegistry) -> tuple[EncoderRequest, list[str]]:
    """Returns the request, whose pairs are the query and each document, and the texts of the documents."""
    _check(RERANK_FIELDS, body, models, ("query", "documents"))
    model = models.find_encoder(body.get("model"), "rerank")
    texts = [sent["text"] if isinstance(sent, dict) else sent for sent in body["documents"]]
    request = EncoderRequest(
        model=model,
        inputs=[(body["query"], text) for text in texts],
        paths=[f"documents[{index}]" for index in range(len(texts))],
        max_tokens=read_truncation(body, model),
    )
    return request, texts


def read_score_request(body: Mapping[str, Any], models: ModelRegistry) -> EncoderRequest:
    """Returns the request. One text is paired with each of the others."""
    _check(SCORE_FIELDS, body, models, ("text_1", "text_2"))
    model = models.find_encoder(body.get("model"), "rerank")
    first, second = ([sent] if isinstance(sent, str) else sent for sent in (body["text_1"], body["text_2"]))
    is_single = isinstance(body["text_2"], str)
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


def _check(
    table: tuple[RequestField, ...], body: Mapping[str, Any], models: ModelRegistry, required: tuple[str, ...]
) -> None:
    check_fields(table, body)
    models.find_encoder(body.get("model"), "rerank")
    for name in required:
        if body.get(name) is None:
            raise missing_field(name)
    refuse_unsupported(table, body)
