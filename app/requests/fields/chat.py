"""Table of the fields of `POST /v1/chat/completions`."""

from typing import Any

from msgspec import structs

from antiphon.app.requests import validators as c
from antiphon.app.requests.fields import (
    EFFORTS,
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
        "reasoning_effort",
        "honoured",
        c.one_of(EFFORTS),
        "Applied when the prompt is rendered; `none` turns reasoning off if the model can.",
    ),
    RequestField(
        "chat_template_kwargs",
        "honoured",
        c.object_of({"enable_thinking": c.is_boolean}),
        "Not in OpenAI's API. The only key is `enable_thinking`; false means the same as `reasoning_effort` `none`.",
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
    *(field for field in SAMPLING_FIELDS if field.name != "top_p"),
    TOP_P,
    *ENGINE_FIELDS,
)
"""Fields of `POST /v1/chat/completions`."""
