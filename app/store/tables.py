"""The tables of the store: one description, from which the statements for SQLite and PostgreSQL are made."""

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

SCHEMA_VERSION = 1
"""Number of these tables in a database. It changes with every change of `TABLES`; other ones are not read."""


class Index(Struct, frozen=True):
    """An index of a table."""

    name: str
    columns: str
    where: str = ""
    """Condition of the rows that it has; empty for all."""
    has_client_ids: bool = False
    """True if clients choose the ids in the last column. PostgreSQL gets a hash index of this column alone, since its
    B-trees refuse keys of more than 2 700 bytes."""


class Table(Struct, frozen=True):
    """A table. The columns of its key come first: SQLite 3.40 else calls a table without row ids corrupt."""

    name: str
    columns: str
    """Names of columns, each with its type, a key of `SqlDialect.words`, and more SQL. Only `NULL` allows null."""
    key: str = ""
    """Columns of the primary key; empty with a column of the type `position`."""
    indexes: tuple[Index, ...] = ()
    has_client_ids: bool = False
    """True if clients choose the `id` in the key: see `Index.has_client_ids`."""
    has_large_rows: bool = False
    """True if the rows are too large for SQLite's tables without row ids."""
    is_compressed: bool = False
    """True if the column `data` is compressed already or a part of a file: PostgreSQL then stores it as it is."""


class SqlDialect(Struct, frozen=True):
    """The words of one database for these tables."""

    words: Mapping[str, str]
    """SQL of the types and values that stand behind names of columns."""
    has_row_ids: bool
    """True if a table has row ids unless it is declared without, as in SQLite."""


SQLITE = SqlDialect(
    {
        "position": "INTEGER PRIMARY KEY",
        "text": "TEXT NOT NULL",
        "bytes": "BLOB NOT NULL",
        "integer": "INTEGER NOT NULL",
        "small": "INTEGER NOT NULL",
        "real": "REAL NOT NULL",
        "unix_time": "(CAST(strftime('%s', 'now') AS INTEGER))",
    },
    has_row_ids=True,
)
POSTGRES = SqlDialect(
    {
        "position": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        "text": "TEXT NOT NULL",
        "bytes": "BYTEA NOT NULL",
        "integer": "BIGINT NOT NULL",
        "small": "INTEGER NOT NULL",
        "real": "DOUBLE PRECISION NOT NULL",
        "unix_time": "extract(epoch FROM now())::bigint",
    },
    has_row_ids=False,
)
TABLES = (
    Table(
        "responses",
        "id text, owner text, created integer, base_response bytes, input_items bytes, size integer DEFAULT 0, "
        "writer text NULL, cancel_requested small DEFAULT 0, wanted small DEFAULT 0",
        key="id",
        indexes=(
            Index("responses_by_age", "created"),
            Index("responses_by_writer", "writer", where="writer IS NOT NULL"),
            Index("responses_by_owner", "owner, created, size"),
        ),
    ),
    Table(
        "events",
        "response text, number small, data bytes, detail bytes NULL, journal bytes NULL",
        key="response, number",
    ),
    Table(
        "items",
        "owner text, id text, response text",
        key="owner, id, response",
        indexes=(Index("items_by_response", "response"),),
        has_client_ids=True,
    ),
    Table("conversations", "owner text, id text, created integer, metadata bytes", key="owner, id"),
    Table(
        "conversation_items",
        "position position, owner text, conversation text, id text, data bytes",
        indexes=(
            Index("items_by_conversation", "owner, conversation, position"),
            Index("conversation_items_by_id", "owner, id", has_client_ids=True),
        ),
    ),
    # One row for each server, with its latest sign of life and its figures.
    Table(
        "writers",
        "name text, heartbeat real, commits integer DEFAULT 0, encryption_key text DEFAULT '', stats text DEFAULT ''",
        key="name",
    ),
    # A choice of a chat completion is a row of `responses`; its events have details.
    Table(
        "chat_completions",
        "position position, id text UNIQUE, owner text, created integer, model text, metadata text, form bytes, "
        "messages bytes",
        indexes=(Index("completions_by_age", "owner, created, position"),),
    ),
    Table(
        "chat_choices",
        "response text, completion text, number small",
        key="response",
        indexes=(Index("choices_by_completion", "completion, number"),),
    ),
    # Parts of uploads are files.
    Table(
        "files",
        "position position, id text UNIQUE, owner text, created integer, expires integer NULL, filename text, "
        "purpose text, size integer, writer text NULL, media_type text DEFAULT '', upload text NULL",
        indexes=(
            Index("files_by_owner", "owner, position"),
            Index("incomplete_files", "writer", where="writer IS NOT NULL"),
            Index("parts_by_upload", "upload", where="upload IS NOT NULL"),
        ),
    ),
    Table(
        "file_pieces",
        "file text, number small, data bytes",
        key="file, number",
        has_large_rows=True,
        is_compressed=True,
    ),
    Table(
        "batches",
        "position position, id text UNIQUE, owner text, created integer, input_file text, data bytes, "
        "writer text NULL, cancel_requested integer DEFAULT 0, has_lines small",
        indexes=(
            Index("batches_by_owner", "owner, position"),
            Index("running_batches", "writer", where="writer IS NOT NULL"),
            Index("batches_with_lines", "id", where="has_lines = 1"),
        ),
    ),
    Table(
        "batch_lines",
        "batch text, number small, line_rank integer, start integer, length small, custom_id text, "
        "model text NULL, status small NULL, body bytes NULL, request_id text NULL",
        key="batch, number",
        indexes=(Index("open_lines", "batch, line_rank", where="status IS NULL"),),
        has_large_rows=True,
    ),
    # Approvals of tool calls, by the nonces of their ids.
    Table(
        "used_approvals",
        "owner text, nonce text, used integer",
        key="owner, nonce",
        indexes=(Index("approvals_by_age", "used"),),
    ),
    # Contents of images and files that other rows refer to.
    Table("blobs", "owner text, sha256 bytes, size integer", key="owner, sha256"),
    Table(
        "blob_pieces",
        "owner text, sha256 bytes, number small, data bytes",
        key="owner, sha256, number",
        has_large_rows=True,
        is_compressed=True,
    ),
    Table(
        "blob_references",
        "holder text, item text, owner text, sha256 bytes, kind text",
        key="holder, item, owner, sha256",
        indexes=(Index("references_by_blob", "owner, sha256, kind"),),
    ),
    Table(
        "uploads",
        "id text, owner text, expires integer, status text, data bytes",
        key="id",
        indexes=(Index("uploads_by_end", "expires"),),
    ),
    # Data with which another server continues a response, kept until the response has ended.
    Table(
        "continuations",
        "position position, response text UNIQUE, model text, digest text, attempts small DEFAULT 0, data bytes",
    ),
    # Causes, times and token counts of the turns of stored responses.
    Table(
        "turn_summaries",
        "id text, owner text, started real, api text, model text, status text, cause text, detail text, "
        "error_code text, previous text, tools text, input_tokens integer, cached_tokens integer, "
        "output_tokens integer, times text",
        key="id",
        indexes=(Index("summaries_by_time", "owner, started, id"),),
    ),
    # Records of turns and the blocks of their prompts.
    Table(
        "turn_records",
        "id text, owner text, data bytes, blocks bytes",
        key="id",
        has_large_rows=True,
        is_compressed=True,
    ),
    Table(
        "prompt_blocks",
        "key bytes, size small, data bytes, uses small",
        key="key",
        indexes=(Index("blocks_by_size", "size"),),
        has_large_rows=True,
        is_compressed=True,
    ),
    # Usage of API keys by the hour; each process has rows of its own.
    Table(
        "usage_hours",
        "hour integer, owner text, key_id text, model text, writer text, requests integer, input_tokens integer, "
        "cached_tokens integer, output_tokens integer, reasoning_tokens integer, failures integer, rejections integer",
        key="hour, owner, key_id, model, writer",
    ),
    # Positions of entries of lists that were deleted: they are not given again.
    Table(
        "deleted_entries",
        "number position, list text, owner text, entry text, created real, position integer, "
        "deleted integer DEFAULT unix_time",
        indexes=(
            Index("deleted_by_entry", "owner, list, entry"),
            Index("deleted_by_position", "list, position"),
            Index("deleted_by_age", "deleted"),
        ),
    ),
)


def create_statements(dialect: SqlDialect) -> Iterator[str]:
    """Yields the statements that create all tables and their indexes."""
    for table in TABLES:
        columns = [_spell_column(column, dialect) for column in table.columns.split(", ")]
        has_long_keys = table.has_client_ids and not dialect.has_row_ids
        key = [f"PRIMARY KEY ({table.key})"] if table.key and not has_long_keys else []
        suffix = " WITHOUT ROWID" if dialect.has_row_ids and key and not table.has_large_rows else ""
        yield f"CREATE TABLE {table.name} ({', '.join(columns + key)}){suffix}"
        if has_long_keys:
            yield f"CREATE INDEX {table.name}_by_id ON {table.name} USING hash (id)"
        if table.is_compressed and not dialect.has_row_ids:
            yield f"ALTER TABLE {table.name} ALTER COLUMN data SET STORAGE EXTERNAL"
        for index in table.indexes:
            yield _create_index(table, index, dialect)


def describe_mismatch(version: int, columns: Iterable[tuple[str, str]]) -> str:
    """Returns the difference of the tables in a database from `TABLES`; empty if there is none.

    `columns` are the names of the tables and columns that it has.
    """
    if version != SCHEMA_VERSION:
        return f"it has schema version {version}, and this Antiphon reads version {SCHEMA_VERSION} only"
    expected = {(table.name, column.split()[0]) for table in TABLES for column in table.columns.split(", ")}
    if missing := expected.difference(columns):
        names = ", ".join(sorted(f"{table}.{column}" for table, column in missing))
        return f"its tables are not those of its version (missing columns: {names})"
    return ""


def _spell_column(column: str, dialect: SqlDialect) -> str:
    name, *words = column.split()
    spelled = " ".join([name, *(dialect.words.get(word, word) for word in words)])
    return spelled.replace("NOT NULL NULL", "NULL")


def _create_index(table: Table, index: Index, dialect: SqlDialect) -> str:
    columns = f"({index.columns})"
    if index.has_client_ids and not dialect.has_row_ids:
        columns = f"USING hash ({index.columns.rpartition(', ')[2]})"
    where = f" WHERE {index.where}" if index.where else ""
    return f"CREATE INDEX {index.name} ON {table.name} {columns}{where}"
