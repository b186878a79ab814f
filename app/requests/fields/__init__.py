"""Table of all request fields, with each field's validator, handling and description.

The table decides which keys are allowed, validates each value, refuses what is not supported, and is printed as
`docs/fields.md` by `python -m antiphon.app.requests.fields`. No field is dropped silently. A field is *honoured*
(changes what is generated or how it is returned), *echoed* (returned in the reply, no other effect), *accepted* (a hint
that cannot change the reply here) or *refused* (400 `unsupported_parameter`). Null always means the same as leaving a
field out.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec import Struct

from antiphon.app.base.errors import unknown_field, unsupported_field
from antiphon.app.requests import validators as c
from antiphon.app.requests.validators import Validator

Handling = Literal["honoured", "echoed", "accepted", "refused"]
NOT_SUPPORTED = "This server does not support this value."

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
VERBOSITIES = ("low", "medium", "high")
TIERS = ("auto", "default", "flex", "priority", "scale", "fast", "ultrafast")
MAX_TEXT_CHARS = 10_485_760
MAX_CHOICES = 128
MAX_TOOLS = 128
MAX_SEED = 2**63 - 1

CACHING = c.object_of({"mode": c.one_of(("implicit", "explicit")), "ttl": c.one_of(("30m", "12h"))})
REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
METADATA: Validator = c.string_map
STOP = c.string_or_array(c.string_like(4096), c.array_of(c.string_like(4096), 16))


class RequestField(Struct, frozen=True):
    """A top-level request field.

    `is_supported` tells which well-formed values are supported; for the others, the error names the path `error_param`,
    or the field if that is None.
    """

    name: str
    handling: Handling
    check: Validator
    description: str
    is_supported: Callable[[Any], bool] = lambda _: True
    error_param: str | None = None


def refused_field(name: str, description: str, check: Validator = c.accept_any) -> RequestField:
    """Returns a field that is recognized but always refused."""
    return RequestField(name, "refused", check, description, lambda _: False)


def check_text_format(value: Any, path: str) -> None:
    """Checks `text.format` or `response_format`: the type must exist, and a JSON Schema needs a name and an object.

    `json_object` may have a `schema`, by which other servers mean the same as `json_schema`.
    """
    c.is_object(value, path)
    kind = c.require_key(value, "type", path)
    c.one_of(("text", "json_object", "json_schema"))(kind, f"{path}.type")
    is_nested = kind == "json_schema" and path != "text.format"  # `response_format` nests the schema one level deeper
    inner_path = f"{path}.json_schema" if is_nested else path
    inner = c.require_key(value, "json_schema", path) if is_nested else value
    if is_nested:
        c.object_of({"type": c.accept_any, "json_schema": c.is_object})(value, path)
    fields: dict[str, Validator] = {"schema": c.is_object} if kind != "text" else {}
    if kind == "json_schema":
        fields |= {
            "name": c.string_like(64, c.NAME),
            "description": c.string_like(MAX_TEXT_CHARS),
            "strict": c.is_boolean,
        }
        c.is_object(inner, inner_path)
        c.require_key(inner, "name", inner_path)
        c.require_key(inner, "schema", inner_path)
    c.object_of(fields if is_nested else fields | {"type": c.accept_any})(inner, inner_path)


def _check_tool_choice(value: Any, path: str) -> None:
    if isinstance(value, str):
        c.one_of(("none", "auto", "required"))(value, path)
    else:
        c.is_object(value, path)
        c.string_like()(c.require_key(value, "type", path), f"{path}.type")


SAMPLING_FIELDS = (
    RequestField(
        "temperature",
        "honoured",
        c.number_between(0, 2),
        "0 to 2; default: the model's own value. 0 selects greedy decoding.",
    ),
    RequestField("top_p", "honoured", c.number_between(0, 1), "0 to 1; default: the model's own value."),
    RequestField("presence_penalty", "honoured", c.number_between(-2, 2), "-2 to 2; applies to generated tokens."),
    RequestField("frequency_penalty", "honoured", c.number_between(-2, 2), "-2 to 2; applies to generated tokens."),
    RequestField(
        "top_k",
        "honoured",
        c.integer_between(-1, 1_000_000),
        "Not in OpenAI's API. Samples from the k most likely tokens; 0 and -1 turn it off.",
    ),
    RequestField(
        "min_p",
        "honoured",
        c.number_between(0, 1),
        "Not in OpenAI's API. Minimum probability of a token, relative to the most likely one.",
    ),
    RequestField(
        "repetition_penalty",
        "honoured",
        c.number_between(0.01, 10),
        "Not in OpenAI's API. 0.01 to 10; applies to prompt and generated tokens.",
    ),
    RequestField(
        "seed", "honoured", c.integer_between(-MAX_SEED - 1, MAX_SEED), "The same seed gives the same random numbers."
    ),
    RequestField(
        "logit_bias",
        "honoured",
        c.token_bias,
        "Maps token ids, as strings, to a bias from -100 to 100; at most 1024 entries.",
    ),
    RequestField(
        "stop",
        "honoured",
        STOP,
        "A string or up to 16 strings. Only the text for the user is searched; a match is not returned. Ignored if the "
        "text must be JSON.",
    ),
)
"""Sampling parameters, the same on both endpoints."""

SHARED_FIELDS = (
    RequestField(
        "model", "honoured", c.string_like(256), "Required. A name from `GET /v1/models`; any other name returns 404."
    ),
    RequestField("stream", "honoured", c.is_boolean, "Sends server-sent events instead of one JSON object."),
    RequestField(
        "tools", "honoured", c.array_of(c.is_object, MAX_TOOLS), "At most 128 tools; see below for the types."
    ),
    RequestField(
        "tool_choice",
        "honoured",
        _check_tool_choice,
        "`auto`, `none`, `required`, a named `function` or `custom` tool, or `allowed_tools`. Enforced in sampling.",
    ),
    RequestField(
        "parallel_tool_calls", "honoured", c.is_boolean, "False: the turn ends after the first complete call."
    ),
    RequestField(
        "prompt_cache_retention", "accepted", c.one_of(("in_memory", "24h")), "A cache hint without effect here."
    ),
    RequestField("prompt_cache_options", "accepted", CACHING, "A cache hint without effect here."),
    refused_field("moderation", "Moderation is not supported."),
)

LABEL_FIELDS = (
    RequestField(
        "service_tier", "echoed", c.one_of(TIERS), "There is only one tier; a Response returns `default` for `auto`."
    ),
    RequestField("metadata", "echoed", METADATA, "At most 16 pairs; keys of up to 64 characters, values of up to 512."),
    RequestField("user", "echoed", c.string_like(512), "At most 512 characters."),
    RequestField("safety_identifier", "echoed", c.string_like(128), "At most 128 characters."),
    RequestField(
        "prompt_cache_key",
        "echoed",
        c.string_like(64),
        "At most 64 characters. Does not affect caching: requests with one API key share common prefixes in any case.",
    ),
)
"""Labels that a client sets for its own use. A chat reply has no fields for them, so chat only accepts them."""


def check_fields(table: tuple[RequestField, ...], body: Mapping[str, Any]) -> None:
    """Checks that every key is in `table` and every value is well formed. Raises `ApiError` 400 for the first fault."""
    names = {field.name for field in table}
    for key, value in body.items():
        if key not in names and value is not None:
            raise unknown_field(key)
    for field in table:
        value = body.get(field.name)
        if value is not None:
            field.check(value, field.name)


def refuse_unsupported(table: tuple[RequestField, ...], body: Mapping[str, Any]) -> None:
    """Raises `ApiError` 400 for the first field whose value is well formed but not supported.

    Call it after all checks, so that malformed values are reported first.
    """
    for field in table:
        value = body.get(field.name)
        if value is not None and not field.is_supported(value):
            raise unsupported_field(
                field.error_param or field.name, NOT_SUPPORTED if field.handling != "refused" else field.description
            )
