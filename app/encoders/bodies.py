"""Bodies of `/v1/embeddings`, `/v1/rerank` and `/v1/score`."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from antiphon.app.errors import ApiError, invalid_type
from antiphon.app.requests.fields import Accepted, Honoured, RequestBody, refused
from antiphon.app.requests.fields.annotations import Checked
from antiphon.app.requests.fields.checks import build_check, require_key
from antiphon.app.requests.fields.common import Label256, Label512, NonNegativeInt, PositiveInt, Text
from antiphon.app.requests.fields.vllm import check_truncation

MAX_INPUTS = 2048
"""Most inputs of a request, as in OpenAI's API."""
MAX_REQUEST_TOKENS = 300_000
"""Most tokens of all inputs of a request, as in OpenAI's API."""
TextList = Annotated[list[Text], Meta(max_length=MAX_INPUTS)]
TokenIds = list[NonNegativeInt]


def too_many_tokens(path: str) -> ApiError:
    """Returns the error for inputs that have too many tokens in total."""
    message = f"Invalid '{path}': the inputs of a request may have at most {MAX_REQUEST_TOKENS} tokens."
    return ApiError(400, "max_tokens_per_request", message, path)


def _check_nonempty(value: Any, path: str) -> None:
    if isinstance(value, str | list) and not value:
        what, code = ("array", "empty_array") if isinstance(value, list) else ("string", "empty_string")
        raise ApiError(400, code, f"Invalid '{path}': it must not be an empty {what}.", path)


def _check_input(value: str | list[Any], path: str) -> None:
    """Checks a string, an array of strings, an array of token ids, or an array of arrays of token ids."""
    _check_nonempty(value, path)
    if isinstance(value, str):
        return
    first = value[0]
    if isinstance(first, int):
        _check_token_count(len(value), path)
        build_check(TokenIds)(value, path)
    elif isinstance(first, list):
        _check_token_count(sum(len(entry) for entry in value if isinstance(entry, list)), path)
        build_check(Annotated[list[TokenIds], Meta(max_length=MAX_INPUTS)])(value, path)
    elif isinstance(first, str):
        build_check(TextList)(value, path)
    else:
        raise invalid_type(f"{path}[0]", "a string, an integer or an array", first)
    for index, entry in enumerate(value):
        _check_nonempty(entry, f"{path}[{index}]")


def _check_token_count(count: int, path: str) -> None:
    """Raises `ApiError` for too many token ids, before each of them is checked."""
    if count > MAX_REQUEST_TOKENS:
        raise too_many_tokens(path)


def _check_texts(value: str | list[str], path: str) -> None:
    """Raises `ApiError` for an empty array. Empty strings are allowed."""
    if isinstance(value, list):
        _check_nonempty(value, path)


def _check_documents(value: list[Any], path: str) -> None:
    """Checks a non-empty array of strings, or of objects with a `text`, as in Cohere's API."""
    _check_nonempty(value, path)
    for index, entry in enumerate(value):
        entry_path = f"{path}[{index}]"
        if isinstance(entry, dict):
            build_check(Text)(require_key(entry, "text", entry_path), f"{entry_path}.text")
        else:
            build_check(Text)(entry, entry_path)


class EncoderBody(RequestBody, frozen=True, kw_only=True):
    """Fields of every request to an embedding or reranking model."""

    truncate_prompt_tokens: Honoured[Annotated[int, Checked(check_truncation)]] = None
    """Not in OpenAI's API. Cuts each input to this number of tokens; -1: to the model's maximum. Without it, a longer
    input returns 400 `context_length_exceeded`."""
    user: Accepted[Label512] = None
    """A label without effect here; at most 512 characters."""
    priority: Annotated[Any, refused("Jobs of encoders have no priorities.")] = None


class EmbeddingsBody(EncoderBody, frozen=True, kw_only=True):
    """Body of `POST /v1/embeddings`."""

    model: Honoured[Label256] = None
    """A name from `GET /v1/models`. Default: the first embedding model."""
    input: Honoured[Annotated[Text | list[Any], Checked(_check_input)]] = None
    """Required. A string, token ids, or an array of up to 2048 of either; at most 300 000 tokens in total. Token ids
    are read as they are; strings get the tokenizer's special tokens."""
    encoding_format: Honoured[Literal["float", "base64"]] = None
    """`float` (default) or `base64`: the same numbers as little-endian float32."""
    dimensions: Honoured[PositiveInt] = None
    """Keeps this number of the first dimensions, scaled to length 1 again; at most the model's own."""
    normalize: Honoured[bool] = None
    """Not in OpenAI's API. Whether vectors are scaled to length 1. Default: as the model's repository says."""


class RerankBody(EncoderBody, frozen=True, kw_only=True):
    """Body of `POST /v1/rerank`."""

    model: Honoured[Label256] = None
    """A name from `GET /v1/models`. Default: the first reranking model."""
    query: Honoured[Text] = None
    """Required."""
    documents: Honoured[Annotated[Annotated[list[Any], Meta(max_length=MAX_INPUTS)], Checked(_check_documents)]] = None
    """Required. Up to 2048 strings, or objects with a `text`; at most 300 000 tokens in total, the query counted with
    each."""
    top_n: Honoured[NonNegativeInt] = None
    """Returns the best n documents only. Default, and 0: all."""
    return_documents: Honoured[bool] = None
    """False leaves the texts out of the results."""


class ScoreBody(EncoderBody, frozen=True, kw_only=True):
    """Body of `POST /v1/score`."""

    model: Honoured[Label256] = None
    """A name from `GET /v1/models`. Default: the first reranking model."""
    text_1: Honoured[Annotated[Text | TextList, Checked(_check_texts)]] = None
    """Required. A string, which is paired with each text of `text_2`, or as many strings as `text_2` has."""
    text_2: Honoured[Annotated[Text | TextList, Checked(_check_texts)]] = None
    """Required. A string or up to 2048 strings."""
