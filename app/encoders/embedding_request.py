"""Parser of `POST /v1/embeddings`."""

from collections.abc import Mapping
from typing import Any

from antiphon.app.encoders.bodies import EmbeddingsBody, EncoderBody
from antiphon.app.encoders.encoder_request import EncoderRequest
from antiphon.app.errors import ApiError, invalid_value, missing_field
from antiphon.app.registry.model_registry import EncoderModel, ModelRegistry
from antiphon.app.requests.fields import decode_body, refuse_unsupported
from antiphon.engine.encoder_messages import VectorOptions
from antiphon.engine.protocol import EngineInfo


def read_embeddings_request(sent: Mapping[str, Any], models: ModelRegistry) -> EncoderRequest:
    """Returns the parsed request. Raises `ApiError`, and `EngineError` if the model has not been loaded."""
    body = decode_body(EmbeddingsBody, sent)
    model = models.find_encoder(body.model, "embedding")
    if body.input is None:
        raise missing_field("input")
    refuse_unsupported(body)
    info = model.engine.info
    is_single = isinstance(body.input, str) or isinstance(body.input[0], int)
    inputs: list[Any] = [body.input] if is_single else list(body.input)
    paths = ["input"] if is_single else [f"input[{index}]" for index in range(len(inputs))]
    _check_token_ids(inputs, paths, info)
    return EncoderRequest(
        model=model,
        inputs=inputs,
        paths=paths,
        max_tokens=read_truncation(body, model),
        options=VectorOptions(_read_dimensions(body, info), body.normalize),
    )


def read_truncation(body: EncoderBody, model: EncoderModel) -> int | None:
    """Returns the length to which inputs are cut; None if they are not."""
    length = body.truncate_prompt_tokens
    limit = model.engine.info.max_model_len
    if length is not None and length > limit:
        message = f"Invalid 'truncate_prompt_tokens': the maximum context length of this model is {limit} tokens."
        raise invalid_value("truncate_prompt_tokens", message)
    return limit if length == -1 else length


def _read_dimensions(body: EmbeddingsBody, info: EngineInfo) -> int | None:
    dimensions = body.dimensions
    if dimensions is not None and dimensions > info.vector_size:
        raise invalid_value("dimensions", f"Invalid 'dimensions': the vectors of this model have {info.vector_size}.")
    return dimensions


def _check_token_ids(inputs: list[Any], paths: list[str], info: EngineInfo) -> None:
    """Raises `ApiError` for an input of token ids that is too long or has an id that is not in the vocabulary."""
    for path, ids in zip(paths, inputs, strict=True):
        if isinstance(ids, list) and max(ids) >= info.vocab_size:
            index = next(index for index, token in enumerate(ids) if token >= info.vocab_size)
            id_path = f"{path}[{index}]"
            message = f"Invalid '{id_path}': the vocabulary of this model has {info.vocab_size} tokens."
            raise ApiError(400, "invalid_value", message, id_path)
