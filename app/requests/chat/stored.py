"""Parts of requests about stored chat completions: the messages to store, and the query of a list."""

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from antiphon.app.base.errors import clip_text, invalid_value
from antiphon.app.requests.chat.body import ChatBody
from antiphon.app.requests.fields.checks import build_check
from antiphon.app.requests.fields.common import Metadata
from antiphon.app.requests.pagination import read_limit, read_order

MESSAGE_KEYS = frozenset(
    {
        "role",
        "content",
        "name",
        "refusal",
        "tool_calls",
        "tool_call_id",
        "function_call",
        "reasoning",
        "reasoning_content",
    }
)
"""Keys of a message that are stored. Others have no effect, and may hold anything."""
_METADATA_PARAM = re.compile(r"metadata\[(.*)\]", re.DOTALL)
_COMPLETION_ID = re.compile(r"chatcmpl-([A-Za-z0-9]{1,64})")

ChatMessages = tuple[dict[str, Any], ...]


class CompletionQuery(Struct, frozen=True, kw_only=True):
    """Selects the first `limit` completions after the one with the id `after`, in order of their creation.

    `model` and `metadata` are what the completions must have.
    """

    limit: int
    after: str | None = None
    descending: bool = False
    model: str | None = None
    metadata: dict[str, str] = {}


def messages_to_store(body: ChatBody) -> ChatMessages:
    """Returns the messages of a request without secrets."""
    return tuple({key: value for key, value in sent.items() if key in MESSAGE_KEYS} for sent in body.messages or ())


def read_completion_id(sent: str) -> str | None:
    """Returns the id that a completion has in the store; None if the id that was sent is malformed."""
    found = _COMPLETION_ID.fullmatch(sent)
    return f"chatcmpl_{found[1]}" if found else None


def read_completion_query(query: Mapping[str, str]) -> CompletionQuery:
    """Returns the query of a list of completions, earliest first by default. Raises `ApiError` 400.

    The caller checks that `after` exists.
    """
    if "metadata" in query:
        raise invalid_value("metadata", "Invalid 'metadata': send each pair as 'metadata[key]=value'.")
    metadata = {found[1]: value for key, value in query.items() if (found := _METADATA_PARAM.fullmatch(key))}
    build_check(Metadata)(metadata, "metadata")
    after = query.get("after")
    return CompletionQuery(
        limit=read_limit(query),
        after=None if after is None else read_completion_id(after) or clip_text(after),
        descending=read_order(query, "asc") == "desc",
        model=query.get("model"),
        metadata=metadata,
    )
