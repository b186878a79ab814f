"""The chat completions of a store in memory. Their choices are logs of the store."""

from collections.abc import Mapping

from msgspec import structs

from antiphon.app.base.event_log import EventLog
from antiphon.app.requests.chat.stored import ChatMessages, CompletionQuery
from antiphon.app.store.base import StoredCompletion

LogKey = tuple[str, str]
"""Owner and id of a log."""


class MemoryCompletions:
    """Stores completions until their logs, which are in `logs`, are evicted or deleted."""

    def __init__(self, logs: Mapping[LogKey, EventLog]) -> None:
        self._logs = logs
        self._completions: dict[LogKey, tuple[StoredCompletion, ChatMessages]] = {}
        self._completion_keys: dict[LogKey, LogKey] = {}
        """Maps the key of a choice to the key of its completion."""

    def add_completion(self, owner: str, completion: StoredCompletion, messages: ChatMessages) -> None:
        """Adds a completion."""
        key = owner, completion.id
        self._completions[key] = completion, messages
        self._completion_keys |= {(owner, choice_id): key for choice_id in completion.choice_ids}

    def choices_with(self, key: LogKey) -> tuple[LogKey, ...]:
        """Returns the keys of all choices of the completion that this log belongs to; without one, its own alone."""
        found = self._completions.get(self._completion_keys.get(key, key))
        return (key,) if found is None else tuple((key[0], choice_id) for choice_id in found[0].choice_ids)

    def delete_with_choice(self, key: LogKey) -> tuple[LogKey, ...]:
        """Deletes the completion that this log belongs to, if any, but no log. Returns the same as `choices_with`."""
        choices = self.choices_with(key)
        self._completions.pop(self._completion_keys.get(key, key), None)
        for choice in choices:
            self._completion_keys.pop(choice, None)
        return choices

    def find_completion(self, owner: str, completion_id: str) -> StoredCompletion | None:
        """Returns the owner's completion, if all its choices have ended."""
        found = self._completions.get((owner, completion_id))
        return found[0] if found is not None and self._has_ended(owner, found[0]) else None

    def list_completions(self, owner: str, query: CompletionQuery) -> list[StoredCompletion]:
        """Returns the owner's completions that the query selects."""
        listed = [each for (key_owner, _), (each, _) in self._completions.items() if key_owner == owner]
        listed.sort(key=lambda completion: completion.created_at)
        if query.descending:
            listed.reverse()
        if query.after is not None:
            ids = [completion.id for completion in listed]
            listed = listed[ids.index(query.after) + 1 :] if query.after in ids else []
        selected = [each for each in listed if _matches(each, query) and self._has_ended(owner, each)]
        return selected[: query.limit]

    def completion_messages(self, owner: str, completion_id: str) -> ChatMessages:
        """Returns the messages that the client sent."""
        found = self._completions.get((owner, completion_id))
        return found[1] if found is not None else ()

    async def save_metadata(self, owner: str, completion_id: str, metadata: dict[str, str]) -> None:
        """Replaces the metadata of a completion."""
        if (found := self._completions.get((owner, completion_id))) is not None:
            self._completions[owner, completion_id] = structs.replace(found[0], metadata=metadata), found[1]

    def _has_ended(self, owner: str, completion: StoredCompletion) -> bool:
        logs = [self._logs.get((owner, choice_id)) for choice_id in completion.choice_ids]
        return all(log is not None and log.ended for log in logs)


def _matches(completion: StoredCompletion, query: CompletionQuery) -> bool:
    has_model = query.model is None or completion.model == query.model
    return has_model and query.metadata.items() <= completion.metadata.items()
