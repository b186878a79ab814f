"""Table of the fields of `POST /v1/messages`."""

from typing import Any

from antiphon.app.base.errors import invalid_value
from antiphon.app.requests import validators as c
from antiphon.app.requests.fields import MAX_TEXT_CHARS, RequestField, refused_field

MIN_THINKING_TOKENS = 1024
MAX_STOP_SEQUENCES = 64
EFFORTS = ("low", "medium", "high", "xhigh", "max")
CACHE_CONTROL = c.object_of(
    {"type": c.one_of(("ephemeral",)), "ttl": c.one_of(("5m", "1h")), "scope": c.string_like(64)}
)
JSON_FORMAT = c.object_of({"type": c.one_of(("json_schema",)), "schema": c.is_object})
KEPT_EDITS = ("clear_thinking_20251015",)
"""Context edits that the model's template performs by itself: it decides which earlier reasoning it shows."""


def _check_thinking(value: Any, path: str) -> None:
    c.object_of(
        {
            "type": c.one_of(("enabled", "adaptive", "disabled")),
            "budget_tokens": c.integer_between(MIN_THINKING_TOKENS),
            "display": c.one_of(("summarized", "omitted")),
        }
    )(value, path)
    kind = c.require_key(value, "type", path)
    if kind == "enabled":
        c.require_key(value, "budget_tokens", path)


def _check_tool_choice(value: Any, path: str) -> None:
    fields = {"type": c.one_of(("auto", "any", "tool", "none")), "disable_parallel_tool_use": c.is_boolean}
    c.object_of({**fields, "name": c.string_like(None, c.NAME)})(value, path)
    if c.require_key(value, "type", path) == "tool":
        c.require_key(value, "name", path)


def _check_stop_sequence(value: Any, path: str) -> None:
    c.string_like(4096)(value, path)
    if not value.strip():
        raise invalid_value(path, f"Invalid '{path}': each stop sequence must contain a character that is not a blank.")


def _check_context_management(value: Any, path: str) -> None:
    c.object_of({"edits": c.array_of(c.is_object)})(value, path)
    for index, edit in enumerate(value.get("edits") or ()):
        edit_path = f"{path}.edits[{index}]"
        c.one_of(KEPT_EDITS)(c.require_key(edit, "type", edit_path), f"{edit_path}.type")


COUNTED_FIELDS = (
    RequestField(
        "model", "honoured", c.string_like(256), "Required. A name from `GET /v1/models`; any other name returns 404."
    ),
    RequestField(
        "messages",
        "honoured",
        c.array_of(c.is_object),
        "Required. The roles are `user`, `assistant` and `system`. Text of the assistant's as the last message is "
        "continued, but not with `thinking`, and not by gpt-oss. Blocks: `text`, `image`, `document`, "
        "`search_result`, `tool_use`, `tool_result`, `thinking` and `redacted_thinking`, which must be signed by this "
        "server. Blocks of server tools are accepted and not shown.",
    ),
    RequestField(
        "system",
        "honoured",
        c.string_or_array(c.string_like(MAX_TEXT_CHARS), c.array_of(c.is_object)),
        "A string or text blocks.",
    ),
    RequestField(
        "tools",
        "honoured",
        c.array_of(c.is_object, 128),
        "At most 128. Tools with an `input_schema`; `strict` is enforced during sampling. Server tools are accepted "
        "and not offered to the model; tools with a schema of Anthropic's own (`bash_…`, `text_editor_…`, "
        "`computer_…`, `memory_…`) are refused.",
    ),
    RequestField(
        "tool_choice",
        "honoured",
        _check_tool_choice,
        "`auto`, `any`, `tool` or `none`. Enforced in sampling. `disable_parallel_tool_use` ends the turn after one "
        "call.",
    ),
    RequestField(
        "thinking",
        "honoured",
        _check_thinking,
        "`disabled` turns reasoning off if the model can. `enabled` needs a `budget_tokens` of at least 1024, which is "
        "a hint. Without the field the model's own default applies. `display` `omitted` leaves the text out of the "
        "blocks; their signatures remain.",
    ),
    RequestField(
        "output_config",
        "honoured",
        c.object_of({"effort": c.one_of(EFFORTS), "format": JSON_FORMAT}),
        "`effort` is applied when the prompt is rendered. `format` is enforced during sampling in the text.",
    ),
    RequestField("output_format", "honoured", JSON_FORMAT, "Older name of `output_config.format`."),
    RequestField("cache_control", "accepted", CACHE_CONTROL, "A cache hint without effect here, also inside blocks."),
    RequestField(
        "context_management",
        "honoured",
        _check_context_management,
        "The only edit is `clear_thinking_20251015`: the model's template decides which earlier reasoning it shows.",
    ),
    refused_field("mcp_servers", "This server connects to no MCP servers. Define the tools in `tools`."),
)
"""Fields that `POST /v1/messages/count_tokens` has, too."""

MESSAGES_FIELDS = (
    *COUNTED_FIELDS,
    RequestField(
        "max_tokens", "honoured", c.integer_between(1), "Required. 1 to 2147483647; includes reasoning tokens."
    ),
    RequestField("stream", "honoured", c.is_boolean, "Sends server-sent events instead of one JSON object."),
    RequestField(
        "stop_sequences",
        "honoured",
        c.array_of(_check_stop_sequence, MAX_STOP_SEQUENCES),
        "At most 64. Only the text for the user is searched; a match is not returned. Ignored with a `format`.",
    ),
    RequestField(
        "temperature",
        "honoured",
        c.number_between(0, 1),
        "0 to 1; default: the model's own value. 0 is greedy decoding.",
    ),
    RequestField("top_p", "honoured", c.number_between(0, 1), "0 to 1; default: the model's own value."),
    RequestField("top_k", "honoured", c.integer_between(0, 1_000_000), "Samples from the k most likely tokens."),
    RequestField(
        "metadata",
        "accepted",
        c.object_of({"user_id": c.string_like(512)}),
        "`user_id` is a label without effect here.",
    ),
    RequestField(
        "service_tier", "accepted", c.one_of(("auto", "standard_only")), "There is only one tier, `standard`."
    ),
    RequestField("inference_geo", "accepted", c.string_like(64), "This server runs in one place."),
    refused_field("container", "Containers are not supported."),
    refused_field("speed", "There is only one speed."),
)
"""Fields of `POST /v1/messages`."""
