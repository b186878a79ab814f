"""Tables of the fields of endpoints that store, change or compact what is stored."""

from antiphon.app.requests import validators as c
from antiphon.app.requests.fields import METADATA, RequestField
from antiphon.app.requests.fields.responses import RESPONSES_FIELDS

MAX_ITEMS = 20
"""Maximum number of items in one request that adds items to a conversation."""
_METADATA_LIMITS = "At most 16 pairs; keys of up to 64 characters, values of up to 512."
_COMPACT_NAMES = frozenset(
    """model input instructions previous_response_id prompt_cache_key prompt_cache_retention prompt_cache_options
    service_tier reasoning image tools parallel_tool_calls text""".split()
)

COMPACT_FIELDS = tuple(field for field in RESPONSES_FIELDS if field.name in _COMPACT_NAMES)
"""Fields of `POST /v1/responses/compact`, which is read as a Responses request."""

_ITEMS = RequestField(
    "items", "honoured", c.array_of(c.is_object, MAX_ITEMS), f"At most {MAX_ITEMS} items, as in `input` of a response."
)
_METADATA = RequestField("metadata", "honoured", METADATA, _METADATA_LIMITS)
CREATE_CONVERSATION_FIELDS = (_ITEMS, _METADATA)
"""Fields of `POST /v1/conversations`. The body may be empty."""
UPDATE_CONVERSATION_FIELDS = (
    RequestField("metadata", "honoured", METADATA, f"Required. Replaces the metadata. {_METADATA_LIMITS}"),
)
"""Fields of `POST /v1/conversations/{conversation_id}`."""
CREATE_ITEMS_FIELDS = (RequestField("items", "honoured", _ITEMS.check, f"Required. {_ITEMS.description}"),)
"""Fields of `POST /v1/conversations/{conversation_id}/items`."""
UPDATE_COMPLETION_FIELDS = (
    RequestField(
        "metadata", "honoured", METADATA, f"Required, but may be null. Replaces the metadata. {_METADATA_LIMITS}"
    ),
)
"""Fields of `POST /v1/chat/completions/{completion_id}`."""
