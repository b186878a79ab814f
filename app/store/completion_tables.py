"""SQL statements of the tables of chat completions, as methods of one connection. A choice is a row of `responses`."""

from typing import Any

import msgspec
import structlog

from antiphon.app.requests.chat.stored import ChatMessages, CompletionsQuery
from antiphon.app.store.base import StoredCompletion
from antiphon.app.store.blobs.blob_tables import BlobHolder, BlobTables
from antiphon.app.store.history.deleted_entries import DeletedEntries
from antiphon.app.store.sql_connection import SqlConnection, write_marks
from antiphon.app.turn_types.blob_urls import NO_BLOBS, BlobContents, find_message_blobs
from antiphon.app.turn_types.reply_form import ChatForm

FREE_OF_RUNNING_CHOICES = """
NOT EXISTS (
    SELECT 1 FROM chat_choices AS this JOIN chat_choices AS other ON other.completion = this.completion
    JOIN responses AS running ON running.id = other.response
    WHERE this.response = responses.id AND running.writer IS NOT NULL
)"""
"""Condition on a row of `responses`: it is no choice of a completion of which another choice is still being written."""
_COMPLETE = """
NOT EXISTS (
    SELECT 1 FROM chat_choices LEFT JOIN responses ON responses.id = response
    WHERE completion = chat_completions.id AND (responses.id IS NULL OR writer IS NOT NULL)
)"""
"""Condition on a row of `chat_completions`: all choices are stored and have ended."""
_COLUMNS = "id, created, model, metadata, form"
_log = structlog.get_logger(__name__)
_metadata_decoder = msgspec.json.Decoder(dict[str, str])
_form_decoder = msgspec.json.Decoder(ChatForm)
_messages_decoder = msgspec.json.Decoder(ChatMessages)


class CompletionTables:
    """Statements on chat completions. The writes are called inside a transaction of the connection.

    `text_position` is the SQL function that returns the position of one text in another, or 0.
    """

    def __init__(self, connection: SqlConnection, text_position: str) -> None:
        self._connection, self._text_position = connection, text_position
        self._blobs, self._deleted = BlobTables(connection), DeletedEntries(connection)

    def insert_completion(
        self, owner: str, completion: StoredCompletion, messages: ChatMessages, contents: BlobContents = NO_BLOBS
    ) -> None:
        """Inserts a completion and the blobs of its messages, before any of its choices has ended."""
        holder = BlobHolder(owner, "completion", completion.id)
        self._blobs.add_references(holder, find_message_blobs(messages), contents)
        statement = """
            INSERT INTO chat_completions (id, owner, created, model, metadata, form, messages)
            VALUES (?, ?, ?, ?, ?, ?, ?)
        """
        metadata, form = _encode_text(completion.metadata), msgspec.json.encode(completion.form)
        row = (completion.id, owner, completion.created_at, completion.model, metadata, form)
        self._connection.execute(statement, (*row, msgspec.json.encode(messages)))
        self._connection.executemany(
            "INSERT INTO chat_choices (response, completion, number) VALUES (?, ?, ?)",
            [(response_id, completion.id, number) for number, response_id in enumerate(completion.choice_ids)],
        )

    def save_metadata(self, owner: str, completion_id: str, metadata: dict[str, str]) -> bool:
        """Replaces the metadata of a completion. Returns False if it has been deleted."""
        statement = "UPDATE chat_completions SET metadata = ? WHERE owner = ? AND id = ?"
        return self._connection.execute(statement, (_encode_text(metadata), owner, completion_id)).rowcount == 1

    def delete_with_choice(self, response_id: str) -> tuple[str, ...]:
        """Deletes the completion that the response is a choice of, if any, but no row of `responses`.

        Returns the ids of all its choices; without a completion, `response_id` alone.
        """
        query = "SELECT completion FROM chat_choices WHERE response = ?"
        row = self._connection.execute(query, (response_id,)).fetchone()
        if row is None:
            return (response_id,)
        choice_ids = self._list_choices(row[0])
        query = "SELECT owner, id, created, position FROM chat_completions WHERE id = ?"
        self._deleted.record("chat_completions", self._connection.execute(query, row).fetchall())
        self._connection.execute("DELETE FROM chat_choices WHERE completion = ?", row)
        self._connection.execute("DELETE FROM chat_completions WHERE id = ?", row)
        return choice_ids

    def find_completion(self, owner: str, completion_id: str) -> StoredCompletion | None:
        """Returns the owner's completion, if all its choices have ended."""
        query = f"SELECT {_COLUMNS} FROM chat_completions WHERE owner = ? AND id = ? AND {_COMPLETE}"  # noqa: S608
        row = self._connection.execute(query, (owner, completion_id)).fetchone()
        return None if row is None else self._decode_completion(row)

    def list_completions(
        self, owner: str, query: CompletionsQuery, excluded: frozenset[str] = frozenset()
    ) -> list[StoredCompletion] | None:
        """Returns the owner's completions that the query selects, without the `excluded` ids.

        The completion `after` may have been deleted. Returns None if there was none.
        """
        conditions, values, descending = ["owner = ?", _COMPLETE], list[Any]([owner]), query.order == "desc"
        if query.model is not None:
            conditions.append("model = ?")
            values.append(query.model)
        for key, value in query.metadata.items():
            # Quotes inside a JSON string are escaped, so no key or value contains this text.
            pair = _encode_text({key: value})[1:-1]
            conditions.append(f"({self._text_position}(metadata, ?) > 0 OR {self._text_position}(metadata, ?) > 0)")
            values += ("{" + pair, "," + pair)
        if excluded:
            conditions.append(f"id NOT IN ({write_marks(len(excluded))})")
            values += excluded
        if query.after is not None:
            place = self._deleted.find_place("chat_completions", owner, query.after, descending=descending)
            if place is None:
                return None
            conditions.append(f"(created, position) {'<' if descending else '>'} (?, ?)")
            values += (int(place[0]), place[1])
        direction = "DESC" if descending else "ASC"
        statement = f"""
            SELECT {_COLUMNS} FROM chat_completions WHERE {" AND ".join(conditions)}
            ORDER BY created {direction}, position {direction} LIMIT ?
        """  # noqa: S608  # every value is a parameter
        rows = self._connection.execute(statement, (*values, query.limit)).fetchall()
        return [completion for row in rows if (completion := self._decode_completion(row)) is not None]

    def load_messages(self, owner: str, completion_id: str) -> ChatMessages:
        """Returns the messages of a completion; none if it does not exist or they cannot be read."""
        query = "SELECT messages FROM chat_completions WHERE owner = ? AND id = ?"
        row = self._connection.execute(query, (owner, completion_id)).fetchone()
        try:
            return _messages_decoder.decode(row[0]) if row is not None else ()
        except (msgspec.DecodeError, UnicodeDecodeError, TypeError) as error:
            _log.error("messages of a chat completion are unreadable", completion=completion_id, error=str(error))
            return ()

    def _list_choices(self, completion_id: str) -> tuple[str, ...]:
        query = "SELECT response FROM chat_choices WHERE completion = ? ORDER BY number"
        return tuple(response_id for (response_id,) in self._connection.execute(query, (completion_id,)))

    def _decode_completion(self, row: tuple[Any, ...]) -> StoredCompletion | None:
        """Returns the completion of a row; None, with a line in the log, if the row was damaged."""
        completion_id, created, model, metadata, form = row
        try:
            return StoredCompletion(
                id=completion_id,
                created_at=created,
                model=model,
                metadata=_metadata_decoder.decode(metadata),
                choice_ids=self._list_choices(completion_id),
                form=_form_decoder.decode(form),
            )
        except (msgspec.DecodeError, UnicodeDecodeError, TypeError) as error:
            _log.error("stored chat completion is unreadable", completion=completion_id, error=str(error))
            return None


def _encode_text(metadata: dict[str, str]) -> str:
    """Returns metadata as JSON text."""
    return msgspec.json.encode(metadata).decode()
