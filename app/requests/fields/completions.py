"""Table of the fields of `POST /v1/completions`."""

from typing import Any

from msgspec import structs

from antiphon.app.base.errors import ApiError, invalid_type
from antiphon.app.requests import validators as c
from antiphon.app.requests.fields import (
    LABEL_FIELDS,
    MAX_CHOICES,
    MAX_TEXT_CHARS,
    SAMPLING_FIELDS,
    SHARED_FIELDS,
    STOP,
    RequestField,
    refused_field,
)
from antiphon.app.requests.fields.chat import CHAT_FIELDS
from antiphon.app.requests.fields.engine import ENGINE_FIELDS, TOP_P
from antiphon.app.requests.fields.reply import REPLY_FIELDS, check_truncation

MAX_PROMPTS = MAX_CHOICES

_check_text = c.string_like(MAX_TEXT_CHARS)


def _check_token_ids(value: Any, path: str) -> None:
    c.is_array(value, path)
    if not all(type(token) is int and 0 <= token <= c.MAX_INTEGER for token in value):  # building paths is slow
        c.array_of(c.integer_between(0))(value, path)


def _check_prompt(value: Any, path: str) -> None:
    if isinstance(value, str):
        _check_text(value, path)
        return
    if not isinstance(value, list):
        raise invalid_type(path, "a string or an array", value)
    if not value:
        raise ApiError(400, "empty_array", f"Invalid '{path}': empty array. Expected at least one entry.", path)
    if isinstance(value[0], str):
        c.array_of(_check_text, MAX_PROMPTS)(value, path)
    elif isinstance(value[0], list):
        c.array_of(_check_token_ids, MAX_PROMPTS)(value, path)
    else:
        _check_token_ids(value, path)


_CHAT_CHECKS = {field.name: field.check for field in CHAT_FIELDS}
_SHARED_NAMES = ("model", "stream")
_OWN_NAMES = ("top_p", "stop")

COMPLETION_FIELDS = (
    *(field for field in SHARED_FIELDS if field.name in _SHARED_NAMES),
    *(structs.replace(field, handling="accepted") for field in LABEL_FIELDS if field.name == "user"),
    RequestField(
        "prompt",
        "honoured",
        _check_prompt,
        "Required. A string, token ids, or an array of up to 128 of either. No chat template is applied: the prompt is "
        "the whole frame, so special tokens that are spelled in it become control tokens. A prompt without any token "
        "is refused.",
    ),
    RequestField(
        "suffix",
        "honoured",
        _check_text,
        "Text after the completion, for models with fill-in-the-middle tokens; 400 for others. Special tokens in "
        "`prompt` and `suffix` are then plain text. An empty string means none. Not with `echo`.",
    ),
    RequestField(
        "max_tokens",
        "honoured",
        c.integer_between(0),
        "Default: 16. 0 generates nothing: with `echo` and `logprobs` it scores the prompt.",
    ),
    RequestField(
        "n",
        "honoured",
        c.integer_between(1, MAX_CHOICES),
        "Choices of each prompt; prompts times choices is at most 128. Choice i is sampled with `seed` + i.",
    ),
    RequestField(
        "logprobs",
        "honoured",
        c.integer_between(0, 5),
        "0 to 5 most likely tokens besides the chosen one. Offsets count characters of the choice's `text`; a token "
        "that is only part of a character is written as `bytes:\\x…`.",
    ),
    RequestField(
        "echo",
        "honoured",
        c.is_boolean,
        "The text begins with the prompt; token ids are decoded. With `logprobs` the prompt's tokens are scored, too.",
    ),
    RequestField(
        "stream_options",
        "honoured",
        c.object_of(
            {
                "include_usage": c.is_boolean,
                "continuous_usage_stats": c.is_boolean,
                "include_obfuscation": c.is_boolean,
            }
        ),
        "Only with `stream`. `include_usage` adds a last chunk with the usage, `continuous_usage_stats` sends the "
        "request's usage so far with every chunk, `include_obfuscation` pads every chunk.",
    ),
    TOP_P,
    RequestField(
        "stop",
        "honoured",
        STOP,
        "A string or up to 16 strings. A match is not returned. Ignored if the text must be JSON. A choice's "
        "`stop_reason`, which is always sent, is the string or the id of `stop_token_ids` that ended it, else null.",
    ),
    *(field for field in SAMPLING_FIELDS if field.name not in _OWN_NAMES),
    RequestField(
        "skip_special_tokens",
        "honoured",
        c.is_boolean,
        "Not in OpenAI's API. Default: true. False: special tokens in the output are part of the text.",
    ),
    RequestField(
        "add_special_tokens",
        "honoured",
        c.is_boolean,
        "Not in OpenAI's API. Default: true. A string gets the tokens that the tokenizer itself adds, such as BOS; "
        "token ids never do.",
    ),
    RequestField(
        "truncate_prompt_tokens",
        "honoured",
        check_truncation,
        "Not in OpenAI's API. Keeps this number of tokens at the prompt's end; -1: as many as fit with `max_tokens`. "
        "`echo` then returns the part that was kept.",
    ),
    RequestField(
        "return_token_ids",
        "honoured",
        c.is_boolean,
        "Not in OpenAI's API. Each choice has `token_ids` and `prompt_token_ids`, in the stream once.",
    ),
    RequestField(
        "response_format",
        "honoured",
        _CHAT_CHECKS["response_format"],
        "Not in OpenAI's API. `text`, `json_object` or `json_schema`; enforced during sampling.",
    ),
    *REPLY_FIELDS,
    *ENGINE_FIELDS,
    refused_field("prompt_embeds", "Prompts are text or token ids."),
)
"""Fields of `POST /v1/completions`."""
