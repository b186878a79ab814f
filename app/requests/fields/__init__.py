"""Every field that a request may have, and what becomes of it: the one list.

It decides which keys are known, checks each value's shape, refuses what is not served yet, and is printed as
`docs/fields.md` by `python -m antiphon.app.requests.fields`. No field is dropped silently: it is *honoured* (changes
what is generated or how it is told), *echoed* (comes back in the reply, nothing more), *accepted* (a hint that cannot
change the reply here) or *refused* (400 `unsupported_parameter`). Null always means the same as leaving a field out.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec import Struct, structs

from antiphon.app.errors import unknown_field, unsupported_field
from antiphon.app.requests import validators as c
from antiphon.app.requests.validators import Validator

Handling = Literal["honoured", "echoed", "accepted", "refused"]
NOT_SUPPORTED = "This server does not support it."

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
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
SUMMARIES = ("auto", "concise", "detailed")
VERBOSITIES = ("low", "medium", "high")
TIERS = ("auto", "default", "flex", "priority", "scale", "fast", "ultrafast")
MAX_TEXT_CHARS = 10_485_760
MAX_CHOICES = 128
MAX_TOOLS = 128
MAX_SEED = 2**63 - 1

CACHING = c.object_of({"mode": c.one_of(("implicit", "explicit")), "ttl": c.one_of(("30m", "12h"))})
RESPONSE_ID = re.compile(r"resp_[A-Za-z0-9_-]+")
CONVERSATION_ID = re.compile(r"conv_[A-Za-z0-9_-]+")
METADATA: Validator = c.string_map
STOP = c.string_or_array(c.string_like(4096), c.array_of(c.string_like(4096), 16))


class RequestField(Struct, frozen=True):
    """One top-level field. `served` says which well-formed values are; `blame` is the path an answer then names."""

    name: str
    handling: Handling
    check: Validator
    description: str
    is_supported: Callable[[Any], bool] = lambda _: True
    error_param: str | None = None


def refused_field(name: str, description: str, check: Validator = c.accept_any) -> RequestField:
    """A field that is known and never served, whatever it holds."""
    return RequestField(name, "refused", check, description, lambda _: False)


def _check_text_format(value: Any, path: str) -> None:
    """`text.format` and `response_format`: the kinds that exist, whether they are served or not."""
    c.is_object(value, path)
    c.one_of(("text", "json_object", "json_schema"))(c.require_key(value, "type", path), f"{path}.type")
    if value["type"] == "json_schema":
        nested = path != "text.format"  # chat has it one level down
        below = f"{path}.json_schema" if nested else path
        inner = c.require_key(value, "json_schema", path) if nested else value
        c.is_object(inner, below)
        c.string_like(64, c.NAME)(c.require_key(inner, "name", below), f"{below}.name")
        c.is_object(c.require_key(inner, "schema", below), f"{below}.schema")


def _check_conversation(value: Any, path: str) -> None:
    if isinstance(value, str):
        c.string_like(128, CONVERSATION_ID)(value, path)
    else:
        c.object_of({"id": c.string_like(128, CONVERSATION_ID)})(value, path)
        c.require_key(value, "id", path)


def _check_tool_choice(value: Any, path: str) -> None:
    if isinstance(value, str):
        c.one_of(("none", "auto", "required"))(value, path)
    else:
        c.is_object(value, path)
        c.string_like()(c.require_key(value, "type", path), f"{path}.type")


SAMPLING_FIELDS = (
    RequestField(
        "temperature", "honoured", c.number_between(0, 2), "0 to 2; the model's own default otherwise. 0 is greedy."
    ),
    RequestField("top_p", "honoured", c.number_between(0, 1), "0 to 1; the model's own default otherwise."),
    RequestField("presence_penalty", "honoured", c.number_between(-2, 2), "-2 to 2, over generated tokens."),
    RequestField("frequency_penalty", "honoured", c.number_between(-2, 2), "-2 to 2, over generated tokens."),
    RequestField(
        "top_k",
        "honoured",
        c.integer_between(-1, 1_000_000),
        "Not OpenAI's. The k likeliest tokens; 0 and -1 mean off.",
    ),
    RequestField(
        "min_p",
        "honoured",
        c.number_between(0, 1),
        "Not OpenAI's. Tokens at least this likely, relative to the likeliest.",
    ),
    RequestField(
        "repetition_penalty", "honoured", c.number_between(0.01, 10), "Not OpenAI's. Over prompt and generated tokens."
    ),
    RequestField(
        "seed", "honoured", c.integer_between(-MAX_SEED - 1, MAX_SEED), "The same seed gives the same random numbers."
    ),
    RequestField(
        "logit_bias", "honoured", c.token_bias, "Token ids, as strings, to -100 to 100; at most 1024 entries."
    ),
    RequestField(
        "stop", "honoured", STOP, "A string or up to 16; matched in the text for the user only, and not said."
    ),
)
"""How the next token is chosen: the same on every face."""

SHARED_FIELDS = (
    RequestField("model", "honoured", c.string_like(256), "Required. Any name of `GET /v1/models`; others answer 404."),
    RequestField("stream", "honoured", c.is_boolean, "Server-sent events instead of one JSON object."),
    RequestField("tools", "honoured", c.array_of(c.is_object, MAX_TOOLS), "Functions and custom tools (see below)."),
    RequestField(
        "tool_choice",
        "honoured",
        _check_tool_choice,
        "`auto`, `none`, `required`, a named `function` or `custom` tool, `allowed_tools`: held to while sampling.",
    ),
    RequestField("parallel_tool_calls", "honoured", c.is_boolean, "False: the turn ends after the first whole call."),
    RequestField("prompt_cache_retention", "accepted", c.one_of(("in_memory", "24h")), "A hint for a cache elsewhere."),
    RequestField("prompt_cache_options", "accepted", CACHING, "A hint for a cache elsewhere."),
    refused_field("moderation", "No moderation model runs here."),
)

LABEL_FIELDS = (
    RequestField("service_tier", "echoed", c.one_of(TIERS), "There is one tier; a Response says `default` for `auto`."),
    RequestField("metadata", "echoed", METADATA, "At most 16 pairs, keys up to 64, values up to 512 characters."),
    RequestField("user", "echoed", c.string_like(512), "At most 512 characters."),
    RequestField("safety_identifier", "echoed", c.string_like(128), "At most 128 characters."),
    RequestField(
        "prompt_cache_key",
        "echoed",
        c.string_like(64),
        "At most 64 characters. A hint that is not needed: what begins alike under one key is shared in any case.",
    ),
)
"""What a client writes on a request for itself. A chat reply has no place for it."""

RESPONSES_FIELDS = (
    *SHARED_FIELDS,
    *LABEL_FIELDS,
    RequestField(
        "input",
        "honoured",
        c.string_or_array(c.string_like(MAX_TEXT_CHARS), c.array_of(c.is_object)),
        "Required. A string or items (below).",
    ),
    RequestField(
        "instructions", "honoured", c.string_like(MAX_TEXT_CHARS), "Placed before the input, as the first system text."
    ),
    RequestField("max_output_tokens", "honoured", c.integer_between(1), "At least 1; reasoning counts."),
    RequestField("max_tool_calls", "honoured", c.integer_between(1), "The turn ends after so many whole calls."),
    RequestField(
        "top_logprobs", "honoured", c.integer_between(0, 20), "0 to 20; above 0 it turns log-probabilities on."
    ),
    RequestField(
        "include",
        "honoured",
        c.array_of(c.one_of(INCLUDABLE)),
        "`message.output_text.logprobs` turns log-probabilities on. `reasoning.encrypted_content` has reasoning sealed "
        "beside the open text, to be sent back later. The others concern tools that run elsewhere.",
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
        "`effort` reaches the prompt; `summary` is echoed, and no summary is invented; `context` and `mode` are "
        "accepted: reasoning that is sent is shown to the model as its template has it.",
    ),
    RequestField(
        "text",
        "honoured",
        c.object_of({"format": _check_text_format, "verbosity": c.one_of(VERBOSITIES)}),
        "`format`: `text`, `json_object` or `json_schema`; the text for the user is held to it while sampling, and "
        "reasoning is not. `verbosity` is echoed.",
    ),
    RequestField(
        "stream_options",
        "honoured",
        c.object_of(
            {"include_obfuscation": c.is_boolean, "reasoning_summary_delivery": c.one_of(("auto", "sequential_cutoff"))}
        ),
        "With `stream` only. `include_obfuscation` pads every delta; `reasoning_summary_delivery` is accepted.",
    ),
    RequestField(
        "store",
        "honoured",
        c.is_boolean,
        "Default true: it is kept, with what was put in. False: nothing of it is ever written down.",
    ),
    RequestField(
        "truncation",
        "honoured",
        c.one_of(("auto", "disabled")),
        "`disabled`: a prompt that does not fit answers 400. `auto`: the oldest items are left out, whole.",
    ),
    RequestField(
        "client_metadata", "accepted", lambda v, p: c.string_map(v, p, most=None), "A flat map of strings (Codex)."
    ),
    RequestField(
        "background",
        "honoured",
        c.is_boolean,
        "True: the reply is there at once, `queued`; the turn goes on whoever reads it. Not with `store` false.",
    ),
    RequestField(
        "previous_response_id",
        "honoured",
        c.string_like(128, RESPONSE_ID),
        "All that was put in and out up to that response stands before `input`; its instructions do not.",
    ),
    RequestField(
        "conversation",
        "honoured",
        _check_conversation,
        "An id, or an object with one: its items stand before `input`, and a stored turn's are added when it has ended "
        "well. Not with `previous_response_id`.",
    ),
    refused_field("prompt", "There are no stored prompt templates."),
    refused_field(
        "context_management", "Ask for a compaction by a `compaction_trigger` item or `/v1/responses/compact`."
    ),
    refused_field("image", "No images are made here."),
    refused_field("access_programs", "They belong to another service."),
    *SAMPLING_FIELDS,
)
"""`POST /v1/responses`."""

CHAT_FIELDS = (
    *SHARED_FIELDS,
    *(structs.replace(label, handling="accepted") for label in LABEL_FIELDS),
    RequestField(
        "messages", "honoured", c.array_of(c.is_object), "Required. `developer`, `system`, `user`, `assistant`, `tool`."
    ),
    RequestField("max_completion_tokens", "honoured", c.integer_between(1), "At least 1; reasoning counts."),
    RequestField(
        "max_tokens", "honoured", c.integer_between(1), "The older name of `max_completion_tokens`; not both."
    ),
    RequestField(
        "n",
        "honoured",
        c.integer_between(1, MAX_CHOICES),
        "1 to 128 choices. A seed is counted up from choice to choice.",
    ),
    RequestField("logprobs", "honoured", c.is_boolean, "Log-probabilities of the text for the user."),
    RequestField("top_logprobs", "honoured", c.integer_between(0, 20), "0 to 20, with `logprobs` only."),
    RequestField(
        "stream_options",
        "honoured",
        c.object_of({"include_usage": c.is_boolean, "include_obfuscation": c.is_boolean}),
        "With `stream` only. `include_usage` adds a last chunk; `include_obfuscation` pads every chunk.",
    ),
    RequestField(
        "response_format",
        "honoured",
        _check_text_format,
        "`text`, `json_object` or `json_schema`: the text for the user is held to it while sampling.",
    ),
    RequestField(
        "reasoning_effort", "honoured", c.one_of(EFFORTS), "Reaches the prompt; `none` switches thinking off."
    ),
    RequestField(
        "chat_template_kwargs",
        "honoured",
        c.object_of({"enable_thinking": c.is_boolean}),
        "Not OpenAI's. `enable_thinking` false is the same as `reasoning_effort` `none`; no other key.",
    ),
    RequestField("verbosity", "accepted", c.one_of(VERBOSITIES), "No dialect served here can be told."),
    RequestField("prediction", "accepted", c.is_object, "A hint for speed; the reply is the same."),
    RequestField("store", "accepted", c.is_boolean, "Chat completions are not kept."),
    RequestField(
        "modalities",
        "honoured",
        c.array_of(c.one_of(("text", "audio"))),
        "`text` only.",
        lambda value: value == ["text"],
    ),
    refused_field("audio", "No audio is made here."),
    refused_field("functions", "Use `tools`."),
    refused_field("function_call", "Use `tool_choice`."),
    refused_field("web_search_options", "No search runs here."),
    *SAMPLING_FIELDS,
)
"""`POST /v1/chat/completions`."""


def check_fields(table: tuple[RequestField, ...], body: Mapping[str, Any]) -> None:
    """Every key is known and every value well formed. Raises `ApiError` 400 for the first that is not."""
    known = {field.name for field in table}
    for key in body:
        if key not in known:
            raise unknown_field(key)
    for field in table:
        value = body.get(field.name)
        if value is not None:
            field.check(value, field.name)


def refuse_unsupported(table: tuple[RequestField, ...], body: Mapping[str, Any]) -> None:
    """What is well formed but not served. Called after every check, so that a wrong value is named first."""
    for field in table:
        value = body.get(field.name)
        if value is not None and not field.is_supported(value):
            raise unsupported_field(
                field.error_param or field.name, NOT_SUPPORTED if field.handling != "refused" else field.description
            )
