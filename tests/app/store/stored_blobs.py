"""Pictures in stored responses, and the rules that their rows keep."""

from collections.abc import Mapping
from typing import Any

from msgspec import structs

from antiphon.app.store.database import Database
from antiphon.app.store.store import ResponseStore
from antiphon.app.turn_types.blob_urls import format_blob_url, refer_to
from antiphon.app.turn_types.event_log import EventLog
from antiphon.app.turns.stored_history import with_ids
from antiphon.events.inputs import InputImage, InputMessage
from antiphon.events.response import ConversationRef
from tests.app.store.store_helpers import (
    make_response,
    make_steps,
)

PICTURE = b"\x89PNG of a cat " * 1000


def picture_message(*contents: bytes, media_type: str = "image/png") -> InputMessage:
    images = [InputImage(image_url=format_blob_url(refer_to(content, media_type))) for content in contents]
    return InputMessage(role="user", content=tuple(images))


def contents_of(*contents: bytes) -> Mapping[bytes, bytes]:
    return {refer_to(content, "").sha256: content for content in contents}


async def add_picture_log(
    store: ResponseStore,
    name: str,
    *contents: bytes,
    owner: str = "me",
    conversation: str | None = None,
    created: int = 2_000_000_000,
    sends: bool = True,
) -> EventLog:
    """Stores a finished response whose input has these pictures, and sends their bytes or not."""
    base: Any = make_response(name, created=created)
    if conversation is not None:
        base = structs.replace(base, conversation=ConversationRef(id=conversation))
    blobs = contents_of(*contents) if sends else {}
    log = EventLog(base, owner, with_ids((picture_message(*contents),), base.id), blobs=blobs)
    log.append_step(make_steps()[0])
    store.add_log(log)
    for step in make_steps()[1:]:
        log.append_step(step)
    log.end_log()
    await log.wait_published()
    return log


def find_faults(database: Database) -> list[str]:
    """Returns what is wrong: blobs without references or all their pieces, references without blobs or holders."""
    queries = {
        "blob without reference": """
            SELECT count(*) FROM blobs WHERE NOT EXISTS (SELECT 1 FROM blob_references AS held
            WHERE held.owner = blobs.owner AND held.sha256 = blobs.sha256)""",
        "reference without blob": """
            SELECT count(*) FROM blob_references AS held WHERE NOT EXISTS (SELECT 1 FROM blobs
            WHERE held.owner = blobs.owner AND held.sha256 = blobs.sha256)""",
        "pieces without blob": """
            SELECT count(*) FROM blob_pieces AS piece WHERE NOT EXISTS (SELECT 1 FROM blobs
            WHERE piece.owner = blobs.owner AND piece.sha256 = blobs.sha256)""",
        "blob without all pieces": """
            SELECT count(*) FROM blobs WHERE size <> (SELECT coalesce(sum(length(data)), 0) FROM blob_pieces AS piece
            WHERE piece.owner = blobs.owner AND piece.sha256 = blobs.sha256)""",
        "reference of a row that does not exist": """
            SELECT count(*) FROM blob_references WHERE
            (kind = 'response' AND NOT EXISTS (SELECT 1 FROM responses WHERE id = holder)) OR
            (kind = 'completion' AND NOT EXISTS (SELECT 1 FROM chat_completions WHERE id = holder)) OR
            (kind = 'conversation' AND NOT EXISTS (SELECT 1 FROM conversation_items WHERE conversation = holder))""",
    }
    found = {name: database.query_rows(query)[0][0] for name, query in queries.items()}
    return [f"{count} × {name}" for name, count in found.items() if count]
