"""Projection of stored chat completions: the fold of their logs, and their messages as lists show them."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from antiphon.app.projections.chat.stream import chat_id, fold_completion
from antiphon.app.requests.chat.stored import ChatMessages
from antiphon.app.store.base import StoredCompletion
from antiphon.app.turn_types.event_log import EventLog


async def stored_completion(completion: StoredCompletion, logs: Sequence[EventLog]) -> dict[str, Any]:
    """Returns a stored completion: the reply that its request got, with its metadata and settings.

    `logs` are its choices, in order. Raises `ApiError` if one has failed.
    """
    base_response = logs[0].base_response
    return {
        **msgspec.to_builtins(await fold_completion(logs, completion.form)),
        "metadata": completion.metadata,
        "service_tier": base_response.service_tier,
        "temperature": base_response.temperature,
        "top_p": base_response.top_p,
        "presence_penalty": base_response.presence_penalty,
        "frequency_penalty": base_response.frequency_penalty,
        "input_user": None if base_response.user is UNSET else base_response.user,
    }


def stored_messages(completion: StoredCompletion, messages: ChatMessages) -> list[dict[str, Any]]:
    """Returns the messages of a completion, in order, each with an id. Content that is an array is `content_parts`."""
    listed = []
    for index, message in enumerate(messages):
        content = message.get("content")
        parts = content if isinstance(content, list) else None
        listed.append(
            {
                "name": None,
                **message,
                "id": f"{chat_id(completion.id)}-{index}",
                "content": None if parts is not None else content,
                "content_parts": parts,
            }
        )
    return listed
