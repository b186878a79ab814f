"""Parts of requests about stored chat completions: the messages to store, and the query of a list."""

import re
from typing import Any

from msgspec import field, structs

from antiphon.app.errors import clip_text
from antiphon.app.requests.chat.body import ChatBody
from antiphon.app.requests.fields.common import Metadata
from antiphon.app.requests.pagination import PageQuery

STORED_KEYS = frozenset(
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
_COMPLETION_ID = re.compile(r"chatcmpl-([A-Za-z0-9]{1,64})")

ChatMessages = tuple[dict[str, Any], ...]


def messages_to_store(body: ChatBody) -> ChatMessages:
    """Returns the messages of a request without secrets."""
    return tuple({key: value for key, value in sent.items() if key in STORED_KEYS} for sent in body.messages or ())


def read_completion_id(sent: str) -> str | None:
    """Returns the id that a completion has in the store; None if the id that was sent is malformed."""
    found = _COMPLETION_ID.fullmatch(sent)
    return f"chatcmpl_{found[1]}" if found else None


class CompletionsQuery(PageQuery, frozen=True, kw_only=True):
    """Query of a list of completions."""

    model: str | None = None
    """Only completions of this model."""
    metadata: Metadata = field(default_factory=dict)
    """Only completions with these pairs."""


def select_completions(query: CompletionsQuery) -> CompletionsQuery:
    """Returns the query with the id that `after` has in the store. The caller checks that it exists."""
    after = query.after
    return query if after is None else structs.replace(query, after=read_completion_id(after) or clip_text(after))
