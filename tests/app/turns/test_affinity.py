"""The key of a conversation: from which source it comes, and that owners never share one."""

from typing import Any

import pytest

from antiphon.app.turns.jobs import affinity_key
from antiphon.events.inputs import InputMessage
from antiphon.events.response import ConversationRef, Response

CACHE_KEY = {"prompt_cache_key": "team"}
CONVERSATION = {"conversation": ConversationRef(id="conv_1")}


def message(item_id: str | None) -> InputMessage:
    return InputMessage(role="user", content="hi", id=item_id)


def key_of(
    items: tuple[str | None, ...] = (None,), stored: tuple[str | None, ...] = (), owner: str = "me", **fields: Any
) -> str:
    """Returns the key of a turn whose items, and whose stored input, have these ids."""
    response = Response(id="resp_1", created_at=1, model="m", metadata={}, **fields)
    return affinity_key(response, owner, [*map(message, items)], [*map(message, stored)])


@pytest.mark.parametrize(
    ("turn", "other"),
    [
        # The client's key comes first, then the conversation, then the first item.
        ({**CACHE_KEY, **CONVERSATION, "items": ("msg_1",)}, {**CACHE_KEY, "items": ("msg_2",), "store": False}),
        ({**CONVERSATION, "items": ("msg_1",)}, {**CONVERSATION, "items": ("msg_2",)}),
        ({"items": ("msg_1", "msg_2")}, {"items": ("msg_1", "msg_3"), "stored": ("msg_3",)}),
        # In the first turn, the items have no ids yet: the second turn finds those that were stored.
        ({"items": (None, None), "stored": ("msg_1", "msg_2")}, {"items": ("msg_1", "msg_9")}),
    ],
)
def test_turns_of_a_conversation_share_a_key(turn: dict[str, Any], other: dict[str, Any]) -> None:
    assert key_of(**turn) == key_of(**other) != ""
    assert key_of(**turn) != key_of(**turn, owner="you"), "two owners"


@pytest.mark.parametrize(
    ("turn", "other"),
    [
        (CACHE_KEY, {"prompt_cache_key": "other"}),
        (CONVERSATION, {"conversation": ConversationRef(id="conv_2")}),
        ({"items": ("msg_1", "msg_3")}, {"items": ("msg_2", "msg_3")}),
        # The same words as another kind of source
        ({"prompt_cache_key": "conv_1"}, CONVERSATION),
        ({"prompt_cache_key": "msg_1"}, {"items": ("msg_1",)}),
        ({"conversation": ConversationRef(id="msg_1")}, {"items": ("msg_1",)}),
    ],
)
def test_other_conversations_have_other_keys(turn: dict[str, Any], other: dict[str, Any]) -> None:
    assert key_of(**turn) != key_of(**other)
    assert "" not in (key_of(**turn), key_of(**other))


@pytest.mark.parametrize(
    "turn",
    [
        {},
        {"items": ("msg_1",), "store": False},
        {"items": (None, "msg_2"), "stored": (None, "msg_3")},
        {"items": ()},
        {"prompt_cache_key": "", "items": ()},
    ],
)
def test_nothing_identifies_the_conversation(turn: dict[str, Any]) -> None:
    assert key_of(**turn) == ""


def test_key_has_none_of_the_clients_words() -> None:
    key = key_of(prompt_cache_key="confidential")
    assert len(key) == 32 and set(key) <= set("0123456789abcdef")
