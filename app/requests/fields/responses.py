"""Table of the fields of `POST /v1/responses`."""

import re
from typing import Any

from antiphon.app.requests import validators as c
from antiphon.app.requests.fields import (
    EFFORTS,
    LABEL_FIELDS,
    MAX_TEXT_CHARS,
    SAMPLING_FIELDS,
    SHARED_FIELDS,
    VERBOSITIES,
    RequestField,
    check_text_format,
    refused_field,
)

INCLUDABLE = (
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)
SUMMARIES = ("auto", "concise", "detailed")
RESPONSE_ID = re.compile(r"resp_[A-Za-z0-9_-]+")
"""An id in the body or in the path of a request."""
CONVERSATION_ID = re.compile(r"conv_[A-Za-z0-9_-]+")


def _check_conversation(value: Any, path: str) -> None:
    if isinstance(value, str):
        c.string_like(128, CONVERSATION_ID)(value, path)
    else:
        c.object_of({"id": c.string_like(128, CONVERSATION_ID)})(value, path)
        c.require_key(value, "id", path)


RESPONSES_FIELDS = (
    *SHARED_FIELDS,
    *LABEL_FIELDS,
    RequestField(
        "input",
        "honoured",
        c.string_or_array(c.string_like(MAX_TEXT_CHARS), c.array_of(c.is_object)),
        "A string or an array of items (see below). Required unless `previous_response_id` or `conversation` is set.",
    ),
    RequestField(
        "instructions", "honoured", c.string_like(MAX_TEXT_CHARS), "Placed before the input as the first system text."
    ),
    RequestField("max_output_tokens", "honoured", c.integer_between(1), "1 to 2147483647; includes reasoning tokens."),
    RequestField(
        "max_tool_calls",
        "honoured",
        c.integer_between(1),
        "At least 1; the turn ends after this number of complete calls.",
    ),
    RequestField(
        "top_logprobs", "honoured", c.integer_between(0, 20), "0 to 20; a value above 0 turns log probabilities on."
    ),
    RequestField(
        "include",
        "honoured",
        c.array_of(c.one_of(INCLUDABLE)),
        "`message.output_text.logprobs` turns log probabilities on. `reasoning.encrypted_content` adds an encrypted "
        "copy of the reasoning that the client can send back. The other values have no effect: they concern images and "
        "tools that run elsewhere.",
    ),
    RequestField(
        "reasoning",
        "honoured",
        c.object_of(
            {
                "effort": c.one_of(EFFORTS),
                "summary": c.one_of(SUMMARIES),
                "generate_summary": c.one_of(SUMMARIES),
                "context": c.one_of(("auto", "current_turn", "all_turns")),
                "mode": c.string_like(64),
            }
        ),
        "`effort` is applied when the prompt is rendered. `summary` is echoed, but no summary is generated. `context` "
        "and `mode` are accepted: the model's template decides how reasoning that the client sends back is rendered.",
    ),
    RequestField(
        "text",
        "honoured",
        c.object_of({"format": check_text_format, "verbosity": c.one_of(VERBOSITIES)}),
        "`format`: `text`, `json_object` or `json_schema`; enforced during sampling in the text for the user, not in "
        "reasoning. `verbosity` is echoed.",
    ),
    RequestField(
        "stream_options",
        "honoured",
        c.object_of(
            {"include_obfuscation": c.is_boolean, "reasoning_summary_delivery": c.one_of(("auto", "sequential_cutoff"))}
        ),
        "Only with `stream`. `include_obfuscation` pads every delta; `reasoning_summary_delivery` is accepted.",
    ),
    RequestField(
        "store",
        "honoured",
        c.is_boolean,
        "Default true: the response and its input are stored. False: no part of them is ever written to the store.",
    ),
    RequestField(
        "truncation",
        "honoured",
        c.one_of(("auto", "disabled")),
        "`disabled`: a prompt that does not fit returns 400. `auto`: the oldest items are left out, each as a whole.",
    ),
    RequestField(
        "client_metadata",
        "accepted",
        lambda v, p: c.string_map(v, p, most=None),
        "A flat map of strings, sent by Codex.",
    ),
    RequestField(
        "background",
        "honoured",
        c.is_boolean,
        "True: the reply is returned at once with status `queued`, and the turn runs whether or not a client reads it. "
        "Not with `store` false.",
    ),
    RequestField(
        "previous_response_id",
        "honoured",
        c.string_like(128, RESPONSE_ID),
        "Prepends the input and output items of that response and its predecessors. Instructions are not inherited.",
    ),
    RequestField(
        "conversation",
        "honoured",
        _check_conversation,
        "An id, or an object with an `id`. Prepends the conversation's items to `input`. The items of a stored turn "
        "are appended to the conversation when the turn ends as `completed` or `incomplete`. Not with "
        "`previous_response_id`.",
    ),
    refused_field("prompt", "Stored prompt templates are not supported."),
    refused_field("context_management", "Send a `compaction_trigger` item or use `/v1/responses/compact`."),
    refused_field("image", "Image generation is not supported."),
    refused_field("access_programs", "Not supported by this server."),
    *SAMPLING_FIELDS,
)
