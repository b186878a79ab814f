"""The chat completions of a persistent store, for the event loop. Those that are being deleted are not found."""

from collections.abc import Awaitable, Callable
from typing import Any

from antiphon.app.requests.chat.stored import ChatMessages, CompletionQuery
from antiphon.app.store.base import StoredCompletion
from antiphon.app.store.database import Database

CommitChange = Callable[[Callable[[Database], Any]], Awaitable[Any]]


class PersistentCompletions:
    """Reads completions from `database`. `deleted` holds the ids whose deletion is not committed yet."""

    def __init__(self, database: Database, deleted: set[str], commit: CommitChange) -> None:
        self._tables, self._deleted, self._commit = database.completions, deleted, commit

    def find_completion(self, owner: str, completion_id: str) -> StoredCompletion | None:
        """Returns the owner's completion, if all its choices have ended."""
        return None if completion_id in self._deleted else self._tables.find_completion(owner, completion_id)

    def list_completions(self, owner: str, query: CompletionQuery) -> list[StoredCompletion]:
        """Returns the owner's completions that the query selects."""
        return self._tables.list_completions(owner, query, frozenset(self._deleted))

    def completion_messages(self, owner: str, completion_id: str) -> ChatMessages:
        """Returns the messages that the client sent."""
        return self._tables.load_messages(owner, completion_id)

    async def save_metadata(self, owner: str, completion_id: str, metadata: dict[str, str]) -> None:
        """Replaces the metadata of a completion."""
        await self._commit(lambda database: database.completions.save_metadata(owner, completion_id, metadata))
