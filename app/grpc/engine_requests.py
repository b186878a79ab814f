"""Converts requests of the engine service to bodies of `/v1/completions`, whose rules and checks then hold here."""

from typing import Any

from google.protobuf.message import DecodeError, Message

from antiphon.app.errors import ApiError, invalid_value, missing_field, unsupported_field
from antiphon.app.registry.model_registry import ServedModel

UNSUPPORTED_FIELDS = ("kv_transfer_params", "kv_transfer_params_json", "mm_inputs", "extra_mm_inputs", "media_refs")
_UNSET_IF_ZERO = (
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "min_tokens",
    "n",
)
"""Parameters without presence. Their zero is the neutral value, or means that the client has set none."""
_OPTIONAL = ("prompt_logprobs", "seed", "truncate_prompt_tokens")
_BOOLEAN_PARAMETERS = ("skip_special_tokens", "ignore_eos", "include_stop_str_in_output")
_LISTS = ("stop", "stop_token_ids")


def decode_message(kind: type[Message], data: bytes) -> Any:
    """Decodes a message, which may have fields that this server does not know. Raises `ApiError` 400."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise ApiError(400, "invalid_message", f"We could not decode the message of your request: {error}") from None


def completion_body(request: Any, model: ServedModel) -> dict[str, Any]:
    """Returns the body for a `GenerateRequest`. Raises `ApiError` 400."""
    for name in UNSUPPORTED_FIELDS:
        if request.HasField(name) if name != "extra_mm_inputs" else request.extra_mm_inputs:
            raise unsupported_field(name, "This server takes text only, and moves no KV cache.")
    if request.HasField("data_parallel_rank") and request.data_parallel_rank > 0:
        raise invalid_value("data_parallel_rank", "Invalid 'data_parallel_rank': this server has only rank 0.")
    prompt = _convert_prompt(request)
    params = request.sampling_params
    room = model.engine.info.max_model_len - (0 if isinstance(prompt, str) else len(prompt))
    body: dict[str, Any] = {
        "model": model.names[0],
        "prompt": prompt,
        # vLLM's engine knows no defaults of the model: what is unset is neutral.
        "temperature": _shorten(params.temperature) if params.HasField("temperature") else 1.0,
        "max_tokens": params.max_tokens if params.HasField("max_tokens") else max(room, 1),
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
    }
    if body["max_tokens"] == 0:
        raise invalid_value("max_tokens", "Invalid 'max_tokens': expected a number above 0.")
    body |= {name: _shorten(getattr(params, name)) for name in _UNSET_IF_ZERO if getattr(params, name)}
    body |= {name: getattr(params, name) for name in _OPTIONAL if params.HasField(name)}
    body |= {name: getattr(params, name) for name in _BOOLEAN_PARAMETERS}
    body |= {name: list(getattr(params, name)) for name in _LISTS if getattr(params, name)}
    if params.HasField("logprobs"):
        body["logprobs"] = params.logprobs
    if params.logit_bias:
        body["logit_bias"] = {str(token): _shorten(bias) for token, bias in params.logit_bias.items()}
    return body | _convert_constraint(params)


def _convert_prompt(request: Any) -> str | list[int]:
    kind = request.WhichOneof("input")
    if kind == "text":
        text: str = request.text
        return text
    if kind is None or not request.tokenized.input_ids:
        raise missing_field("tokenized.input_ids")
    return list(request.tokenized.input_ids)


def _convert_constraint(params: Any) -> dict[str, Any]:
    kind = params.WhichOneof("constraint")
    if kind is None or (kind == "json_object" and not params.json_object):
        return {}
    if kind == "structural_tag":
        raise ApiError(400, "unsupported_parameter", "Unsupported parameter: 'structural_tag'.", "structural_tag")
    value = list(params.choice.choices) if kind == "choice" else getattr(params, kind)
    return {"structured_outputs": {"json" if kind == "json_schema" else kind: value}}


def _shorten(number: float) -> float:
    """Returns a number without the digits that a float of 32 bits adds. An integer stays one."""
    return round(number, 6)
