"""The statements that create the tables of a store file, and those that change the tables of earlier versions."""

import sqlite3

_VERSION_4 = """
CREATE TABLE chat_completions (
    position INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, created INTEGER NOT NULL,
    model TEXT NOT NULL, metadata TEXT NOT NULL, form BLOB NOT NULL, messages BLOB NOT NULL
);
CREATE INDEX by_completion_age ON chat_completions (owner, created, position);
CREATE TABLE chat_choices (
    response TEXT PRIMARY KEY, completion TEXT NOT NULL, number INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX by_completion ON chat_choices (completion, number);
ALTER TABLE events ADD COLUMN detail BLOB
"""
"""Additions of version 4. A choice of a completion is a row of `responses`; its events have details."""
_VERSION_5 = """
CREATE TABLE files (
    position INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, created INTEGER NOT NULL,
    expires INTEGER, filename TEXT NOT NULL, purpose TEXT NOT NULL, size INTEGER NOT NULL, writer TEXT
);
CREATE INDEX files_by_owner ON files (owner, position);
CREATE INDEX incomplete_files ON files (writer) WHERE writer IS NOT NULL;
CREATE TABLE file_pieces (
    file TEXT NOT NULL, number INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (file, number)
);
CREATE TABLE batches (
    position INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, created INTEGER NOT NULL,
    input_file TEXT NOT NULL, data BLOB NOT NULL, writer TEXT, cancel_requested INTEGER NOT NULL DEFAULT 0,
    has_lines INTEGER NOT NULL
);
CREATE INDEX batches_by_owner ON batches (owner, position);
CREATE INDEX running_batches ON batches (writer) WHERE writer IS NOT NULL;
CREATE INDEX batches_with_lines ON batches (id) WHERE has_lines = 1;
CREATE TABLE batch_lines (
    batch TEXT NOT NULL, number INTEGER NOT NULL, line_rank INTEGER NOT NULL, start INTEGER NOT NULL,
    length INTEGER NOT NULL, custom_id TEXT NOT NULL, model TEXT, status INTEGER, body BLOB, request_id TEXT,
    PRIMARY KEY (batch, number)
);
CREATE INDEX open_lines ON batch_lines (batch, line_rank) WHERE status IS NULL
"""
"""Additions of version 5: files, whose rows of content are too large for tables without row ids, and batches."""
_VERSION_6 = """
CREATE TABLE used_approvals (
    owner TEXT NOT NULL, nonce TEXT NOT NULL, used INTEGER NOT NULL, PRIMARY KEY (owner, nonce)
) WITHOUT ROWID;
CREATE INDEX approvals_by_age ON used_approvals (used)
"""
"""Additions of version 6: approvals of tool calls, by the nonces of their ids, with the time of their use."""
_VERSION_7 = """
CREATE TABLE blobs (
    owner TEXT NOT NULL, sha256 BLOB NOT NULL, size INTEGER NOT NULL, PRIMARY KEY (owner, sha256)
) WITHOUT ROWID;
CREATE TABLE blob_pieces (
    owner TEXT NOT NULL, sha256 BLOB NOT NULL, number INTEGER NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (owner, sha256, number)
);
CREATE TABLE blob_references (
    holder TEXT NOT NULL, item TEXT NOT NULL, owner TEXT NOT NULL, sha256 BLOB NOT NULL, kind TEXT NOT NULL,
    PRIMARY KEY (holder, item, owner, sha256)
) WITHOUT ROWID;
CREATE INDEX references_by_blob ON blob_references (owner, sha256, kind);
ALTER TABLE files ADD COLUMN media_type TEXT NOT NULL DEFAULT '';
ALTER TABLE files ADD COLUMN upload TEXT;
CREATE INDEX parts_by_upload ON files (upload) WHERE upload IS NOT NULL;
CREATE TABLE uploads (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, expires INTEGER NOT NULL, status TEXT NOT NULL, data BLOB NOT NULL
) WITHOUT ROWID;
CREATE INDEX uploads_by_end ON uploads (expires)
"""
# The columns of a primary key come first: SQLite 3.40 else calls the rows of a table without row ids corrupt.
"""Additions of version 7: blobs, which other rows refer to, and uploads, whose parts are files."""
_VERSION_8 = """
CREATE TABLE continuations (
    position INTEGER PRIMARY KEY, response TEXT NOT NULL UNIQUE, model TEXT NOT NULL, digest TEXT NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0, data BLOB NOT NULL
)
"""
"""Additions of version 8: what another process needs to go on with a response, until the response has ended."""
_VERSION_9 = """
CREATE TABLE turn_summaries (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, started REAL NOT NULL, api TEXT NOT NULL, model TEXT NOT NULL,
    status TEXT NOT NULL, cause TEXT NOT NULL, detail TEXT NOT NULL, error_code TEXT NOT NULL,
    previous TEXT NOT NULL, tools TEXT NOT NULL, input_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL, times TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX summaries_by_time ON turn_summaries (owner, started, id)
"""
"""Additions of version 9: why, when and with how many tokens the turn of each stored response ended."""
_VERSION_10 = """
CREATE TABLE turn_records (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, data BLOB NOT NULL, blocks BLOB NOT NULL
);
CREATE TABLE prompt_blocks (
    key BLOB PRIMARY KEY, size INTEGER NOT NULL, data BLOB NOT NULL, uses INTEGER NOT NULL
);
CREATE INDEX blocks_by_size ON prompt_blocks (size);
ALTER TABLE writers ADD COLUMN stats TEXT NOT NULL DEFAULT ''
"""
"""Additions of version 10: records of turns, blocks of their prompts, and the figures of each server."""
_VERSION_11 = """
CREATE TABLE usage_hours (
    hour INTEGER NOT NULL, owner TEXT NOT NULL, key_id TEXT NOT NULL, model TEXT NOT NULL, writer TEXT NOT NULL,
    requests INTEGER NOT NULL, input_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL, reasoning_tokens INTEGER NOT NULL, failures INTEGER NOT NULL,
    rejections INTEGER NOT NULL,
    PRIMARY KEY (hour, owner, key_id, model, writer)
) WITHOUT ROWID;
CREATE INDEX by_owner ON responses (owner, created, size)
"""
"""Additions of version 11: what API keys have used in each hour, as each process has counted it; sizes by owner."""
_KEEP_POSITIONS = """
CREATE TRIGGER {table}_position AFTER INSERT ON {table}
WHEN new.position <= (SELECT max(position) FROM deleted_entries WHERE list = '{table}')
BEGIN
    UPDATE {table} SET position = (SELECT max(position) + 1 FROM deleted_entries WHERE list = '{table}')
    WHERE position = new.position;
END"""
"""Places a new row behind deleted ones: SQLite gives the position of the last row again once it has been deleted."""
_ORDERED_TABLES = ("files", "batches", "chat_completions", "conversation_items")
_VERSION_12 = f"""
CREATE TABLE deleted_entries (
    number INTEGER PRIMARY KEY, list TEXT NOT NULL, owner TEXT NOT NULL, entry TEXT NOT NULL, created REAL NOT NULL,
    position INTEGER NOT NULL, deleted INTEGER NOT NULL DEFAULT (CAST(strftime('%s', 'now') AS INTEGER))
);
CREATE INDEX deleted_by_entry ON deleted_entries (owner, list, entry);
CREATE INDEX deleted_by_position ON deleted_entries (list, position);
CREATE INDEX deleted_by_age ON deleted_entries (deleted);
{";".join(_KEEP_POSITIONS.format(table=table) for table in _ORDERED_TABLES)}"""
"""Additions of version 12: places of entries of lists that were deleted."""
SCHEMA = f"""
CREATE TABLE responses (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, created INTEGER NOT NULL, base_response BLOB NOT NULL,
    input_items BLOB NOT NULL, size INTEGER NOT NULL DEFAULT 0, writer TEXT,
    cancel_requested INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX by_age ON responses (created);
CREATE INDEX by_writer ON responses (writer) WHERE writer IS NOT NULL;
CREATE TABLE events (
    response TEXT NOT NULL, number INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (response, number)
) WITHOUT ROWID;
CREATE TABLE items (
    owner TEXT NOT NULL, id TEXT NOT NULL, response TEXT NOT NULL, PRIMARY KEY (owner, id, response)
) WITHOUT ROWID;
CREATE INDEX by_response ON items (response);
CREATE TABLE conversations (
    owner TEXT NOT NULL, id TEXT NOT NULL, created INTEGER NOT NULL, metadata BLOB NOT NULL, PRIMARY KEY (owner, id)
) WITHOUT ROWID;
CREATE TABLE conversation_items (
    position INTEGER PRIMARY KEY, owner TEXT NOT NULL, conversation TEXT NOT NULL, id TEXT NOT NULL, data BLOB NOT NULL
);
CREATE INDEX by_conversation ON conversation_items (owner, conversation, position);
CREATE INDEX by_item ON conversation_items (owner, id);
CREATE TABLE writers (name TEXT PRIMARY KEY, heartbeat REAL NOT NULL) WITHOUT ROWID;
{_VERSION_4};
{_VERSION_5};
{_VERSION_6};
{_VERSION_7};
{_VERSION_8};
{_VERSION_9};
{_VERSION_10};
{_VERSION_11};
{_VERSION_12}"""
MIGRATIONS: tuple[str, ...] = (
    "ALTER TABLE responses ADD COLUMN asked INTEGER NOT NULL DEFAULT 0",
    """
    ALTER TABLE responses RENAME COLUMN head TO base_response;
    ALTER TABLE responses RENAME COLUMN given TO input_items;
    ALTER TABLE responses RENAME COLUMN asked TO cancel_requested;
    ALTER TABLE talk RENAME TO conversation_items;
    ALTER TABLE conversation_items RENAME COLUMN place TO position;
    ALTER TABLE writers RENAME COLUMN beat TO heartbeat
    """,
    _VERSION_4,
    _VERSION_5,
    _VERSION_6,
    _VERSION_7,
    _VERSION_8,
    _VERSION_9,
    _VERSION_10,
    _VERSION_11,
    _VERSION_12,
)
"""Statements that migrate a file from version 1 to 2, from 2 to 3, …"""


def split_script(script: str) -> list[str]:
    """Returns the statements of a script. That of a trigger has others in it."""
    statements, statement = list[str](), ""
    for part in script.split(";"):
        statement += part
        if sqlite3.complete_statement(f"{statement};"):
            statements.append(statement)
            statement = ""
        else:
            statement += ";"
    return statements
