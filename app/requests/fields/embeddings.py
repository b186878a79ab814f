"""Tables of the fields of `POST /v1/embeddings`, `POST /v1/rerank` and `POST /v1/score`."""

from typing import Any

from antiphon.app.base.errors import ApiError, invalid_type
from antiphon.app.requests import validators as c
from antiphon.app.requests.fields import MAX_TEXT_CHARS, RequestField, refused_field

MAX_INPUTS = 2048
"""Most inputs of a request, as in OpenAI's API."""
MAX_REQUEST_TOKENS = 300_000
"""Most tokens of all inputs of a request, as in OpenAI's API."""
_TEXT = c.string_like(MAX_TEXT_CHARS)
_TOKEN_ID = c.integer_between(0)


def _check_nonempty(value: Any, path: str) -> None:
    if not value:
        what, code = ("array", "empty_array") if isinstance(value, list) else ("string", "empty_string")
        raise ApiError(400, code, f"Invalid '{path}': it must not be an empty {what}.", path)


def _check_input(value: Any, path: str) -> None:
    """Checks a string, an array of strings, an array of token ids, or an array of arrays of token ids."""
    c.string_or_array(_TEXT, c.is_array)(value, path)
    _check_nonempty(value, path)
    if isinstance(value, str):
        return
    first = value[0]
    if isinstance(first, int):
        _check_token_count(len(value), path)
        c.array_of(_TOKEN_ID)(value, path)
    elif isinstance(first, list):
        _check_token_count(sum(len(entry) for entry in value if isinstance(entry, list)), path)
        c.array_of(c.array_of(_TOKEN_ID), MAX_INPUTS)(value, path)
    elif isinstance(first, str):
        c.array_of(_TEXT, MAX_INPUTS)(value, path)
    else:
        raise invalid_type(f"{path}[0]", "a string, an integer or an array", first)
    for index, entry in enumerate(value):
        if not isinstance(entry, int):
            _check_nonempty(entry, f"{path}[{index}]")


def _check_token_count(count: int, path: str) -> None:
    """Raises `ApiError` for too many token ids, before each of them is checked."""
    if count > MAX_REQUEST_TOKENS:
        raise too_many_tokens(path)


def too_many_tokens(path: str) -> ApiError:
    """Returns the error for inputs that have too many tokens in total."""
    message = f"Invalid '{path}': the inputs of a request may have at most {MAX_REQUEST_TOKENS} tokens."
    return ApiError(400, "max_tokens_per_request", message, path)


def _check_texts(value: Any, path: str) -> None:
    """Checks a string or a non-empty array of strings. Empty strings are allowed."""
    c.string_or_array(_TEXT, c.array_of(_TEXT, MAX_INPUTS))(value, path)
    if isinstance(value, list):
        _check_nonempty(value, path)


def _check_truncation(value: Any, path: str) -> None:
    c.integer_between(-1)(value, path)
    if value == 0:
        c.integer_between(1)(value, path)


def _check_documents(value: Any, path: str) -> None:
    """Checks a non-empty array of strings, or of objects with a `text`, as in Cohere's API."""
    c.array_of(c.accept_any, MAX_INPUTS)(value, path)
    _check_nonempty(value, path)
    for index, entry in enumerate(value):
        entry_path = f"{path}[{index}]"
        if isinstance(entry, dict):
            _TEXT(c.require_key(entry, "text", entry_path), f"{entry_path}.text")
        else:
            _TEXT(entry, entry_path)


def _model(kind: str) -> RequestField:
    return RequestField(
        "model", "honoured", c.string_like(256), f"A name from `GET /v1/models`. Default: the first {kind} model."
    )


_TRUNCATION = RequestField(
    "truncate_prompt_tokens",
    "honoured",
    _check_truncation,
    "Not in OpenAI's API. Cuts each input to this number of tokens; -1: to the model's maximum. Without it, a longer "
    "input returns 400 `context_length_exceeded`.",
)
_USER = RequestField("user", "accepted", c.string_like(512), "A label without effect here; at most 512 characters.")
_PRIORITY = refused_field("priority", "Jobs of encoders have no priorities.")

EMBEDDINGS_FIELDS = (
    _model("embedding"),
    RequestField(
        "input",
        "honoured",
        _check_input,
        "Required. A string, token ids, or an array of up to 2048 of either; at most 300 000 tokens in total. Token "
        "ids are read as they are; strings get the tokenizer's special tokens.",
    ),
    RequestField(
        "encoding_format",
        "honoured",
        c.one_of(("float", "base64")),
        "`float` (default) or `base64`: the same numbers as little-endian float32.",
    ),
    RequestField(
        "dimensions",
        "honoured",
        c.integer_between(1),
        "Keeps this number of the first dimensions, scaled to length 1 again; at most the model's own.",
    ),
    _TRUNCATION,
    RequestField(
        "normalize",
        "honoured",
        c.is_boolean,
        "Not in OpenAI's API. Whether vectors are scaled to length 1. Default: as the model's repository says.",
    ),
    _USER,
    _PRIORITY,
)
"""Fields of `POST /v1/embeddings`."""

RERANK_FIELDS = (
    _model("reranking"),
    RequestField("query", "honoured", _TEXT, "Required."),
    RequestField(
        "documents",
        "honoured",
        _check_documents,
        "Required. Up to 2048 strings, or objects with a `text`; at most 300 000 tokens in total, the query counted "
        "with each.",
    ),
    RequestField("top_n", "honoured", c.integer_between(0), "Returns the best n documents only. Default, and 0: all."),
    RequestField("return_documents", "honoured", c.is_boolean, "False leaves the texts out of the results."),
    _TRUNCATION,
    _USER,
    _PRIORITY,
)
"""Fields of `POST /v1/rerank`."""

SCORE_FIELDS = (
    _model("reranking"),
    RequestField(
        "text_1",
        "honoured",
        _check_texts,
        "Required. A string, which is paired with each text of `text_2`, or as many strings as `text_2` has.",
    ),
    RequestField("text_2", "honoured", _check_texts, "Required. A string or up to 2048 strings."),
    _TRUNCATION,
    _USER,
    _PRIORITY,
)
"""Fields of `POST /v1/score`."""
