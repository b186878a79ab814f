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

from antiphon.app.errors import unknown, unsupported
from antiphon.app.requests import validators as c
from antiphon.app.requests.validators import Check

Does = Literal["honoured", "echoed", "accepted", "refused"]
NOT_YET = "This server does not support it."

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
MOST_TEXT = 10_485_760
MOST_CHOICES = 128
MOST_TOOLS = 128
SEED = 2**63 - 1

CACHING = c.fields({"mode": c.one_of(("implicit", "explicit")), "ttl": c.one_of(("30m", "12h"))})
RESPONSE_ID = re.compile(r"resp_[A-Za-z0-9_-]+")
CONVERSATION_ID = re.compile(r"conv_[A-Za-z0-9_-]+")
METADATA: Check = c.pairs
STOP = c.either(c.string(4096), c.array_of(c.string(4096), 16))


class Field(Struct, frozen=True):
    """One top-level field. `served` says which well-formed values are; `blame` is the path an answer then names."""

    name: str
    does: Does
    check: Check
    says: str
    served: Callable[[Any], bool] = lambda _: True
    blame: str | None = None


def refused(name: str, says: str, check: Check = c.anything) -> Field:
    """A field that is known and never served, whatever it holds."""
    return Field(name, "refused", check, says, lambda _: False)


def _text_format(value: Any, path: str) -> None:
    """`text.format` and `response_format`: the kinds that exist, whether they are served or not."""
    c.obj(value, path)
    c.one_of(("text", "json_object", "json_schema"))(c.needed(value, "type", path), f"{path}.type")
    if value["type"] == "json_schema":
        nested = path != "text.format"  # chat has it one level down
        below = f"{path}.json_schema" if nested else path
        inner = c.needed(value, "json_schema", path) if nested else value
        c.obj(inner, below)
        c.string(64, c.NAME)(c.needed(inner, "name", below), f"{below}.name")
        c.obj(c.needed(inner, "schema", below), f"{below}.schema")


def _conversation(value: Any, path: str) -> None:
    if isinstance(value, str):
        c.string(128, CONVERSATION_ID)(value, path)
    else:
        c.fields({"id": c.string(128, CONVERSATION_ID)})(value, path)
        c.needed(value, "id", path)


def _tool_choice(value: Any, path: str) -> None:
    if isinstance(value, str):
        c.one_of(("none", "auto", "required"))(value, path)
    else:
        c.obj(value, path)
        c.string()(c.needed(value, "type", path), f"{path}.type")


SAMPLING = (
    Field("temperature", "honoured", c.number(0, 2), "0 to 2; the model's own default otherwise. 0 is greedy."),
    Field("top_p", "honoured", c.number(0, 1), "0 to 1; the model's own default otherwise."),
    Field("presence_penalty", "honoured", c.number(-2, 2), "-2 to 2, over generated tokens."),
    Field("frequency_penalty", "honoured", c.number(-2, 2), "-2 to 2, over generated tokens."),
    Field("top_k", "honoured", c.integer(-1, 1_000_000), "Not OpenAI's. The k likeliest tokens; 0 and -1 mean off."),
    Field("min_p", "honoured", c.number(0, 1), "Not OpenAI's. Tokens at least this likely, relative to the likeliest."),
    Field("repetition_penalty", "honoured", c.number(0.01, 10), "Not OpenAI's. Over prompt and generated tokens."),
    Field("seed", "honoured", c.integer(-SEED - 1, SEED), "The same seed gives the same random numbers."),
    Field("logit_bias", "honoured", c.bias, "Token ids, as strings, to -100 to 100; at most 1024 entries."),
    Field("stop", "honoured", STOP, "A string or up to 16; matched in the text for the user only, and not said."),
)
"""How the next token is chosen: the same on every face."""

SHARED = (
    Field("model", "honoured", c.string(256), "Required. Any name of `GET /v1/models`; others answer 404."),
    Field("stream", "honoured", c.boolean, "Server-sent events instead of one JSON object."),
    Field("tools", "honoured", c.array_of(c.obj, MOST_TOOLS), "Functions and custom tools (see below)."),
    Field(
        "tool_choice",
        "honoured",
        _tool_choice,
        "`auto`, `none`, `required`, a named `function` or `custom` tool, `allowed_tools`: held to while sampling.",
    ),
    Field("parallel_tool_calls", "honoured", c.boolean, "False: the turn ends after the first whole call."),
    Field("prompt_cache_retention", "accepted", c.one_of(("in_memory", "24h")), "A hint for a cache elsewhere."),
    Field("prompt_cache_options", "accepted", CACHING, "A hint for a cache elsewhere."),
    refused("moderation", "No moderation model runs here."),
)

LABELS = (
    Field("service_tier", "echoed", c.one_of(TIERS), "There is one tier; a Response says `default` for `auto`."),
    Field("metadata", "echoed", METADATA, "At most 16 pairs, keys up to 64, values up to 512 characters."),
    Field("user", "echoed", c.string(512), "At most 512 characters."),
    Field("safety_identifier", "echoed", c.string(128), "At most 128 characters."),
    Field(
        "prompt_cache_key",
        "echoed",
        c.string(64),
        "At most 64 characters. A hint that is not needed: what begins alike under one key is shared in any case.",
    ),
)
"""What a client writes on a request for itself. A chat reply has no place for it."""

RESPONSES = (
    *SHARED,
    *LABELS,
    Field(
        "input", "honoured", c.either(c.string(MOST_TEXT), c.array_of(c.obj)), "Required. A string or items (below)."
    ),
    Field("instructions", "honoured", c.string(MOST_TEXT), "Placed before the input, as the first system text."),
    Field("max_output_tokens", "honoured", c.integer(1), "At least 1; reasoning counts."),
    Field("max_tool_calls", "honoured", c.integer(1), "The turn ends after so many whole calls."),
    Field("top_logprobs", "honoured", c.integer(0, 20), "0 to 20; above 0 it turns log-probabilities on."),
    Field(
        "include",
        "honoured",
        c.array_of(c.one_of(INCLUDABLE)),
        "`message.output_text.logprobs` turns log-probabilities on. `reasoning.encrypted_content` has reasoning sealed "
        "beside the open text, to be sent back later. The others concern tools that run elsewhere.",
    ),
    Field(
        "reasoning",
        "honoured",
        c.fields(
            {
                "effort": c.one_of(EFFORTS),
                "summary": c.one_of(SUMMARIES),
                "generate_summary": c.one_of(SUMMARIES),
                "context": c.one_of(("auto", "current_turn", "all_turns")),
                "mode": c.string(64),
            }
        ),
        "`effort` reaches the prompt; `summary` is echoed, and no summary is invented; `context` and `mode` are "
        "accepted: reasoning that is sent is shown to the model as its template has it.",
    ),
    Field(
        "text",
        "honoured",
        c.fields({"format": _text_format, "verbosity": c.one_of(VERBOSITIES)}),
        "`format`: `text`, `json_object` or `json_schema`; the text for the user is held to it while sampling, and "
        "reasoning is not. `verbosity` is echoed.",
    ),
    Field(
        "stream_options",
        "honoured",
        c.fields(
            {"include_obfuscation": c.boolean, "reasoning_summary_delivery": c.one_of(("auto", "sequential_cutoff"))}
        ),
        "With `stream` only. `include_obfuscation` pads every delta; `reasoning_summary_delivery` is accepted.",
    ),
    Field(
        "store",
        "honoured",
        c.boolean,
        "Default true: it is kept, with what was put in. False: nothing of it is ever written down.",
    ),
    Field(
        "truncation",
        "honoured",
        c.one_of(("auto", "disabled")),
        "`disabled`: a prompt that does not fit answers 400. `auto`: the oldest items are left out, whole.",
    ),
    Field("client_metadata", "accepted", lambda v, p: c.pairs(v, p, most=None), "A flat map of strings (Codex)."),
    Field(
        "background",
        "honoured",
        c.boolean,
        "True: the reply is there at once, `queued`; the turn goes on whoever reads it. Not with `store` false.",
    ),
    Field(
        "previous_response_id",
        "honoured",
        c.string(128, RESPONSE_ID),
        "All that was put in and out up to that response stands before `input`; its instructions do not.",
    ),
    Field(
        "conversation",
        "honoured",
        _conversation,
        "An id, or an object with one: its items stand before `input`, and a stored turn's are added when it has ended "
        "well. Not with `previous_response_id`.",
    ),
    refused("prompt", "There are no stored prompt templates."),
    refused("context_management", "Ask for a compaction by a `compaction_trigger` item or `/v1/responses/compact`."),
    refused("image", "No images are made here."),
    refused("access_programs", "They belong to another service."),
    *SAMPLING,
)
"""`POST /v1/responses`."""

CHAT = (
    *SHARED,
    *(structs.replace(label, does="accepted") for label in LABELS),
    Field("messages", "honoured", c.array_of(c.obj), "Required. `developer`, `system`, `user`, `assistant`, `tool`."),
    Field("max_completion_tokens", "honoured", c.integer(1), "At least 1; reasoning counts."),
    Field("max_tokens", "honoured", c.integer(1), "The older name of `max_completion_tokens`; not both."),
    Field("n", "honoured", c.integer(1, MOST_CHOICES), "1 to 128 choices. A seed is counted up from choice to choice."),
    Field("logprobs", "honoured", c.boolean, "Log-probabilities of the text for the user."),
    Field("top_logprobs", "honoured", c.integer(0, 20), "0 to 20, with `logprobs` only."),
    Field(
        "stream_options",
        "honoured",
        c.fields({"include_usage": c.boolean, "include_obfuscation": c.boolean}),
        "With `stream` only. `include_usage` adds a last chunk; `include_obfuscation` pads every chunk.",
    ),
    Field(
        "response_format",
        "honoured",
        _text_format,
        "`text`, `json_object` or `json_schema`: the text for the user is held to it while sampling.",
    ),
    Field("reasoning_effort", "honoured", c.one_of(EFFORTS), "Reaches the prompt; `none` switches thinking off."),
    Field(
        "chat_template_kwargs",
        "honoured",
        c.fields({"enable_thinking": c.boolean}),
        "Not OpenAI's. `enable_thinking` false is the same as `reasoning_effort` `none`; no other key.",
    ),
    Field("verbosity", "accepted", c.one_of(VERBOSITIES), "No dialect served here can be told."),
    Field("prediction", "accepted", c.obj, "A hint for speed; the reply is the same."),
    Field("store", "accepted", c.boolean, "Chat completions are not kept."),
    Field(
        "modalities",
        "honoured",
        c.array_of(c.one_of(("text", "audio"))),
        "`text` only.",
        lambda value: value == ["text"],
    ),
    refused("audio", "No audio is made here."),
    refused("functions", "Use `tools`."),
    refused("function_call", "Use `tool_choice`."),
    refused("web_search_options", "No search runs here."),
    *SAMPLING,
)
"""`POST /v1/chat/completions`."""


def check(table: tuple[Field, ...], body: Mapping[str, Any]) -> None:
    """Every key is known and every value well formed. Raises `ApiError` 400 for the first that is not."""
    known = {field.name for field in table}
    for key in body:
        if key not in known:
            raise unknown(key)
    for field in table:
        value = body.get(field.name)
        if value is not None:
            field.check(value, field.name)


def refuse(table: tuple[Field, ...], body: Mapping[str, Any]) -> None:
    """What is well formed but not served. Called after every check, so that a wrong value is named first."""
    for field in table:
        value = body.get(field.name)
        if value is not None and not field.served(value):
            raise unsupported(field.blame or field.name, NOT_YET if field.does != "refused" else field.says)
