"""The tables in PostgreSQL and their migrations. Several servers may start at once: one migrates, the others wait."""

import psycopg

from antiphon.app.store.base import StoreError
from antiphon.app.store.postgres.address import DatabaseAddress
from antiphon.app.store.postgres.connection import PostgresConnection

SCHEMA_VERSION = 9
MIGRATION_LOCK = 0x616E7469_70686F6E
"""Key of the advisory lock that a server holds while it migrates."""
TABLES = (
    "responses", "events", "items", "conversations", "conversation_items", "writers", "chat_completions",
    "chat_choices", "files", "file_pieces", "batches", "batch_lines", "used_approvals", "blobs",
    "blob_pieces", "blob_references", "uploads", "continuations", "turn_summaries", "turn_records", "prompt_blocks",
    "usage_hours", "deleted_entries",
)  # fmt: skip
# Clients choose ids of items. Those are indexed by their hash, since a B-tree refuses keys of more than 2 700 bytes.
SCHEMA = """
CREATE TABLE antiphon_schema (version INTEGER NOT NULL);
INSERT INTO antiphon_schema VALUES (0);
CREATE TABLE responses (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, created BIGINT NOT NULL, base_response BYTEA NOT NULL,
    input_items BYTEA NOT NULL, size BIGINT NOT NULL DEFAULT 0, writer TEXT,
    cancel_requested INTEGER NOT NULL DEFAULT 0, wanted INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX responses_by_age ON responses (created);
CREATE INDEX responses_by_writer ON responses (writer) WHERE writer IS NOT NULL;
CREATE TABLE events (
    response TEXT NOT NULL, number INTEGER NOT NULL, data BYTEA NOT NULL, detail BYTEA, PRIMARY KEY (response, number)
);
CREATE TABLE items (owner TEXT NOT NULL, id TEXT NOT NULL, response TEXT NOT NULL);
CREATE INDEX items_by_id ON items USING hash (id);
CREATE INDEX items_by_response ON items (response);
CREATE TABLE conversations (
    owner TEXT NOT NULL, id TEXT NOT NULL, created BIGINT NOT NULL, metadata BYTEA NOT NULL, PRIMARY KEY (owner, id)
);
CREATE TABLE conversation_items (
    position BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, owner TEXT NOT NULL, conversation TEXT NOT NULL,
    id TEXT NOT NULL, data BYTEA NOT NULL
);
CREATE INDEX items_by_conversation ON conversation_items (owner, conversation, position);
CREATE INDEX conversation_items_by_id ON conversation_items USING hash (id);
CREATE TABLE writers (
    name TEXT PRIMARY KEY, heartbeat DOUBLE PRECISION NOT NULL, commits BIGINT NOT NULL DEFAULT 0,
    encryption_key TEXT NOT NULL DEFAULT ''
);
CREATE TABLE chat_completions (
    position BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL,
    created BIGINT NOT NULL, model TEXT NOT NULL, metadata TEXT NOT NULL, form BYTEA NOT NULL, messages BYTEA NOT NULL
);
CREATE INDEX completions_by_age ON chat_completions (owner, created, position);
CREATE TABLE chat_choices (response TEXT PRIMARY KEY, completion TEXT NOT NULL, number INTEGER NOT NULL);
CREATE INDEX choices_by_completion ON chat_choices (completion, number);
"""
BATCH_SCHEMA = """
CREATE TABLE files (
    position BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL,
    created BIGINT NOT NULL, expires BIGINT, filename TEXT NOT NULL, purpose TEXT NOT NULL, size BIGINT NOT NULL,
    writer TEXT
);
CREATE INDEX files_by_owner ON files (owner, position);
CREATE INDEX incomplete_files ON files (writer) WHERE writer IS NOT NULL;
CREATE TABLE file_pieces (
    file TEXT NOT NULL, number INTEGER NOT NULL, data BYTEA NOT NULL, PRIMARY KEY (file, number)
);
ALTER TABLE file_pieces ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE TABLE batches (
    position BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL,
    created BIGINT NOT NULL, input_file TEXT NOT NULL, data BYTEA NOT NULL, writer TEXT,
    cancel_requested BIGINT NOT NULL DEFAULT 0, has_lines INTEGER NOT NULL
);
CREATE INDEX batches_by_owner ON batches (owner, position);
CREATE INDEX running_batches ON batches (writer) WHERE writer IS NOT NULL;
CREATE INDEX batches_with_lines ON batches (id) WHERE has_lines = 1;
CREATE TABLE batch_lines (
    batch TEXT NOT NULL, number INTEGER NOT NULL, line_rank BIGINT NOT NULL, start BIGINT NOT NULL,
    length INTEGER NOT NULL, custom_id TEXT NOT NULL, model TEXT, status INTEGER, body BYTEA, request_id TEXT,
    PRIMARY KEY (batch, number)
);
CREATE INDEX open_lines ON batch_lines (batch, line_rank) WHERE status IS NULL;
"""
"""Files and batches. The content of files is not compressed."""
APPROVAL_SCHEMA = """
CREATE TABLE used_approvals (
    owner TEXT NOT NULL, nonce TEXT NOT NULL, used BIGINT NOT NULL, PRIMARY KEY (owner, nonce)
);
CREATE INDEX approvals_by_age ON used_approvals (used);
"""
"""Approvals of tool calls, by the nonces of their ids, with the time of their use."""
BLOB_SCHEMA = """
CREATE TABLE blobs (owner TEXT NOT NULL, sha256 BYTEA NOT NULL, size BIGINT NOT NULL, PRIMARY KEY (owner, sha256));
CREATE TABLE blob_pieces (
    owner TEXT NOT NULL, sha256 BYTEA NOT NULL, number INTEGER NOT NULL, data BYTEA NOT NULL,
    PRIMARY KEY (owner, sha256, number)
);
ALTER TABLE blob_pieces ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE TABLE blob_references (
    holder TEXT NOT NULL, item TEXT NOT NULL, kind TEXT NOT NULL, owner TEXT NOT NULL, sha256 BYTEA NOT NULL,
    PRIMARY KEY (holder, item, owner, sha256)
);
CREATE INDEX references_by_blob ON blob_references (owner, sha256, kind);
ALTER TABLE files ADD COLUMN media_type TEXT NOT NULL DEFAULT '';
ALTER TABLE files ADD COLUMN upload TEXT;
CREATE INDEX parts_by_upload ON files (upload) WHERE upload IS NOT NULL;
CREATE TABLE uploads (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, expires BIGINT NOT NULL, status TEXT NOT NULL, data BYTEA NOT NULL
);
CREATE INDEX uploads_by_end ON uploads (expires);
"""
"""Contents of pictures and files that other rows refer to, not compressed, and uploads, whose parts are files."""
CONTINUATION_SCHEMA = """
CREATE TABLE continuations (
    position BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, response TEXT NOT NULL UNIQUE, model TEXT NOT NULL,
    digest TEXT NOT NULL, attempts INTEGER NOT NULL DEFAULT 0, data BYTEA NOT NULL
);
"""
"""Data with which another server goes on with a response, kept until the response has ended."""
SUMMARY_SCHEMA = """
CREATE TABLE turn_summaries (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, started DOUBLE PRECISION NOT NULL, api TEXT NOT NULL, model TEXT NOT NULL,
    status TEXT NOT NULL, cause TEXT NOT NULL, detail TEXT NOT NULL, error_code TEXT NOT NULL,
    previous TEXT NOT NULL, tools TEXT NOT NULL, input_tokens BIGINT NOT NULL, cached_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL, times TEXT NOT NULL
);
CREATE INDEX summaries_by_time ON turn_summaries (owner, started, id);
"""
"""Causes, times and token counts of the turns of stored responses."""
RECORD_SCHEMA = """
CREATE TABLE turn_records (id TEXT PRIMARY KEY, owner TEXT NOT NULL, data BYTEA NOT NULL, blocks BYTEA NOT NULL);
ALTER TABLE turn_records ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE TABLE prompt_blocks (
    key BYTEA PRIMARY KEY, size INTEGER NOT NULL, data BYTEA NOT NULL, uses INTEGER NOT NULL
);
ALTER TABLE prompt_blocks ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE INDEX blocks_by_size ON prompt_blocks (size);
ALTER TABLE writers ADD COLUMN stats TEXT NOT NULL DEFAULT '';
"""
"""Records of turns and the blocks of their prompts, which are compressed before, and the figures of each server."""
USAGE_SCHEMA = """
CREATE TABLE usage_hours (
    hour BIGINT NOT NULL, owner TEXT NOT NULL, key_id TEXT NOT NULL, model TEXT NOT NULL, writer TEXT NOT NULL,
    requests BIGINT NOT NULL, input_tokens BIGINT NOT NULL, cached_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL, reasoning_tokens BIGINT NOT NULL, failures BIGINT NOT NULL,
    rejections BIGINT NOT NULL,
    PRIMARY KEY (hour, owner, key_id, model, writer)
);
CREATE INDEX responses_by_owner ON responses (owner, created, size);
"""
"""Usage of API keys by the hour; each process has rows of its own."""
DELETED_SCHEMA = """
CREATE TABLE deleted_entries (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, list TEXT NOT NULL, owner TEXT NOT NULL,
    entry TEXT NOT NULL, created DOUBLE PRECISION NOT NULL, position BIGINT NOT NULL,
    deleted BIGINT NOT NULL DEFAULT extract(epoch FROM now())::bigint
);
CREATE INDEX deleted_by_entry ON deleted_entries (owner, list, entry);
CREATE INDEX deleted_by_age ON deleted_entries (deleted);
"""
"""Places of entries of lists that were deleted. Their positions are not given again."""
MIGRATIONS: tuple[str, ...] = (
    *(SCHEMA, BATCH_SCHEMA, APPROVAL_SCHEMA, BLOB_SCHEMA, CONTINUATION_SCHEMA),
    *(SUMMARY_SCHEMA, RECORD_SCHEMA, USAGE_SCHEMA, DELETED_SCHEMA),
)
"""Statements that migrate a database from version 0, an empty one, to 1, from 1 to 2, …"""


def migrate_database(address: DatabaseAddress) -> None:
    """Creates or migrates the tables. Raises `StoreError`."""
    connection = PostgresConnection(address)
    try:
        _migrate(connection)
    except psycopg.Error as error:
        raise StoreError(f"cannot open the store {address.label}: {address.describe_error(error)}") from None
    except StoreError as error:
        raise StoreError(f"cannot open the store {address.label}: {error}") from None
    finally:
        connection.close()


def _migrate(connection: PostgresConnection) -> None:
    connection.run_script(f"BEGIN; SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")
    version = _load_version(connection)
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"it was created by a newer Antiphon (schema version {version}; this one supports up to {SCHEMA_VERSION}). "
            "Upgrade Antiphon."
        )
    if version < SCHEMA_VERSION:
        for migration in MIGRATIONS[version:]:
            connection.run_script(migration)
        connection.execute("UPDATE antiphon_schema SET version = ?", (SCHEMA_VERSION,))
    connection.run_script("COMMIT")


def _load_version(connection: PostgresConnection) -> int:
    """Returns the version of the tables; 0 if there are none. Raises `StoreError` for tables of another program."""
    if connection.execute("SELECT to_regclass('antiphon_schema')::text").fetchone()[0] is not None:
        version: int = connection.execute("SELECT version FROM antiphon_schema").fetchone()[0]
        return version
    query = "SELECT tablename::text FROM pg_tables WHERE schemaname = current_schema() AND tablename = ANY(?)"
    if row := connection.execute(query, (list(TABLES),)).fetchone():
        raise StoreError(f"it has a table {row[0]} of another program. Give Antiphon a database of its own.")
    return 0
