"""Table of the fields of `POST /v1/chat/completions`."""

from typing import Any

from msgspec import structs

from antiphon.app.requests import validators as c
from antiphon.app.requests.fields import (
    LABEL_FIELDS,
    MAX_CHOICES,
    MAX_TOOLS,
    METADATA,
    SAMPLING_FIELDS,
    SHARED_FIELDS,
    VERBOSITIES,
    RequestField,
    check_text_format,
    refused_field,
)
from antiphon.app.requests.fields.engine import ENGINE_FIELDS, TOP_P
from antiphon.app.requests.fields.prompt import PROMPT_FIELDS
from antiphon.app.requests.fields.reply import REPLY_FIELDS, check_truncation


def _check_function_call(value: Any, path: str) -> None:
    if isinstance(value, str):
        c.one_of(("none", "auto"))(value, path)
    else:
        c.object_of({"name": c.string_like(None, c.NAME)})(value, path)


CHAT_FIELDS = (
    *SHARED_FIELDS,
    *(structs.replace(label, handling="accepted") for label in LABEL_FIELDS if label.name != "metadata"),
    RequestField(
        "metadata",
        "honoured",
        METADATA,
        "At most 16 pairs; keys of up to 64 characters, values of up to 512. Kept with a completion that is stored.",
    ),
    RequestField(
        "messages",
        "honoured",
        c.array_of(c.is_object),
        "Required. The roles are `developer`, `system`, `user`, `assistant` and `tool`. A `name` precedes the text of "
        "its message as `name: `; that of a tool message is accepted.",
    ),
    RequestField(
        "max_completion_tokens", "honoured", c.integer_between(1), "1 to 2147483647; includes reasoning tokens."
    ),
    RequestField(
        "max_tokens", "honoured", c.integer_between(1), "Older name of `max_completion_tokens`. Send only one of them."
    ),
    RequestField(
        "n",
        "honoured",
        c.integer_between(1, MAX_CHOICES),
        "1 to 128 choices. Choice i, counted from 0, is sampled with `seed` + i.",
    ),
    RequestField("logprobs", "honoured", c.is_boolean, "Returns log probabilities of the text for the user."),
    RequestField("top_logprobs", "honoured", c.integer_between(0, 20), "0 to 20; only with `logprobs`."),
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
        "Only with `stream`. `include_usage` adds a last chunk with the usage; with `continuous_usage_stats`, which is "
        "not in OpenAI's API, every chunk has the usage so far. `include_obfuscation` pads every chunk.",
    ),
    RequestField(
        "response_format",
        "honoured",
        check_text_format,
        "`text`, `json_object` or `json_schema`; enforced during sampling in the text for the user. "
        "`json_object` may have a `schema`.",
    ),
    RequestField(
        "verbosity", "accepted", c.one_of(VERBOSITIES), "No effect: no supported dialect has a setting for it."
    ),
    RequestField("prediction", "accepted", c.is_object, "A hint to speed up decoding; the reply is the same."),
    RequestField(
        "store",
        "honoured",
        c.is_boolean,
        "Default false. True: the completion, with all its choices, and its messages are stored.",
    ),
    RequestField(
        "modalities",
        "honoured",
        c.array_of(c.one_of(("text", "audio"))),
        "Only `text`.",
        lambda value: value == ["text"],
    ),
    refused_field("audio", "Audio output is not supported."),
    RequestField(
        "functions",
        "honoured",
        c.array_of(c.is_object, MAX_TOOLS),
        "Deprecated: use `tools`. The reply has at most one call, as `function_call`.",
    ),
    RequestField(
        "function_call",
        "honoured",
        _check_function_call,
        "Deprecated: use `tool_choice`. `none`, `auto` or the name of a function.",
    ),
    refused_field("web_search_options", "Web search is not supported."),
    RequestField(
        "echo",
        "honoured",
        c.is_boolean,
        "Not in OpenAI's API. The text begins with that of the last message if that is the assistant's, as with "
        "`continue_final_message`.",
    ),
    RequestField(
        "skip_special_tokens",
        "honoured",
        c.is_boolean,
        "Not in OpenAI's API. Default: true. False: special tokens in the output are part of the text; 400 for models "
        "whose dialect has calls, because special tokens are its syntax.",
    ),
    RequestField(
        "truncate_prompt_tokens",
        "honoured",
        check_truncation,
        "Not in OpenAI's API. Keeps this number of tokens at the prompt's end; -1: as many as fit with the token "
        "limit. The beginning of the chat template's own text may be among those that are left out.",
    ),
    RequestField(
        "return_token_ids",
        "honoured",
        c.is_boolean,
        "Not in OpenAI's API. The reply has `prompt_token_ids`, in the stream once, and each choice `token_ids`: all "
        "tokens that were generated, also those of reasoning and calls. They are sent only on request. A choice's "
        "`stop_reason` is always sent, in the stream with the finish reason: the stop string or the id of "
        "`stop_token_ids` that ended the text, else null.",
    ),
    *PROMPT_FIELDS,
    *REPLY_FIELDS,
    *(field for field in SAMPLING_FIELDS if field.name != "top_p"),
    TOP_P,
    *ENGINE_FIELDS,
)
"""Fields of `POST /v1/chat/completions`."""
