"""The key by which an engine with several replicas keeps a conversation on one of them."""

import hashlib
from collections.abc import Sequence

from antiphon.events.inputs import AnyInput
from antiphon.events.response import ConversationRef, Response


def affinity_key(response: Response, owner: str, items: Sequence[AnyInput], stored_input: Sequence[AnyInput]) -> str:
    """Returns the same opaque key for all turns of a conversation; an empty string if nothing identifies it.

    The client's `prompt_cache_key` identifies it, or the conversation's id, or the id of its first item. `items`: the
    whole conversation; `stored_input`: the input of this turn with the ids under which it is stored. The key contains
    none of the client's own words.
    """
    first_ids = [item.id for item in (*items[:1], *stored_input[:1]) if item.id]
    if response.prompt_cache_key:
        source = f"key {response.prompt_cache_key}"
    elif isinstance(response.conversation, ConversationRef):
        source = f"conversation {response.conversation.id}"
    elif response.store and first_ids:
        source = f"item {first_ids[0]}"
    else:
        return ""
    return hashlib.sha256(f"{owner}\0{source}".encode()).hexdigest()[:32]
