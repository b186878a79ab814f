"""The table of what API keys have used in each hour."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct, structs

from antiphon.app.store.sql_connection import SqlConnection, write_marks

COLUMNS = ("owner", "key_id", "model")


class UsageCounts(Struct, kw_only=True):
    """Requests, tokens and failures. `cached_tokens` are part of the input, `reasoning_tokens` of the output."""

    requests: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    failures: int = 0
    """Turns that ended as failed."""
    rejections: int = 0
    """Requests that were answered 429."""

    def add(self, other: "UsageCounts") -> None:
        """Adds the numbers of another one."""
        for name in NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def copy(self) -> "UsageCounts":
        """Returns the same numbers, which do not change."""
        return structs.replace(self)


NUMBERS = UsageCounts.__struct_fields__
_COLUMNS = ", ".join(NUMBERS)
_SUMS = ", ".join(f"CAST(SUM({name}) AS BIGINT)" for name in NUMBERS)


class UsageRow(NamedTuple):
    """Sums of a key of an owner for a model, in the hour, or another period, that starts at `start`."""

    start: int
    """Seconds since 1970."""
    owner: str
    key_id: str
    model: str
    counts: UsageCounts


class UsageQuery(Struct, frozen=True, kw_only=True):
    """Which sums to return. Times are in seconds since 1970, `end` is exclusive; a period is a multiple of an hour."""

    start: int
    end: int
    period_s: int
    by: tuple[str, ...] = ()
    """Columns of `COLUMNS` whose values have sums of their own."""
    only: Mapping[str, Sequence[str]] = {}
    """Allowed values of columns."""


class UsageTable:
    """Rows of the table."""

    def __init__(self, connection: SqlConnection) -> None:
        self._connection = connection

    def save_rows(self, writer: str, rows: Iterable[UsageRow]) -> None:
        """Replaces the totals of a writer for these hours, owners, keys and models."""
        updates = ", ".join(f"{name} = excluded.{name}" for name in NUMBERS)
        for row in rows:
            self._connection.execute(
                f"INSERT INTO usage_hours (hour, owner, key_id, model, writer, {_COLUMNS}) "  # noqa: S608
                f"VALUES (?, ?, ?, ?, ?, {write_marks(len(NUMBERS))}) "
                f"ON CONFLICT (hour, owner, key_id, model, writer) DO UPDATE SET {updates}",
                (row.start, row.owner, row.key_id, row.model, writer, *(getattr(row.counts, name) for name in NUMBERS)),
            )

    def sum_tokens(self, since: int) -> list[tuple[str, str, int]]:
        """Returns owners, key ids and their tokens in the hours from this one on."""
        rows = self._connection.execute(
            "SELECT owner, key_id, CAST(SUM(input_tokens + output_tokens) AS BIGINT) FROM usage_hours WHERE hour >= ? "
            "GROUP BY owner, key_id",
            (since,),
        )
        return [(owner, key_id, int(num_tokens)) for owner, key_id, num_tokens in rows]

    def sum_periods(self, query: UsageQuery) -> list[UsageRow]:
        """Returns the sums of each period, by the columns of the query; the other columns are "" in the rows."""
        groups = [name if name in query.by else "''" for name in COLUMNS]
        conditions = ["hour >= ?", "hour < ?"]
        values: list[int | str] = [query.start, query.end]
        for name, allowed in query.only.items():
            conditions.append(f"{name} IN ({write_marks(len(allowed)) or 'NULL'})")
            values += allowed
        period_s = int(query.period_s)
        rows = self._connection.execute(
            f"SELECT hour / {period_s} * {period_s} AS start, {', '.join(groups)}, {_SUMS} FROM usage_hours "  # noqa: S608
            f"WHERE {' AND '.join(conditions)} GROUP BY {', '.join(['1', *query.by])} ORDER BY 1, 2, 3, 4",
            values,
        )
        return [
            UsageRow(start, owner, key_id, model, UsageCounts(**dict(zip(NUMBERS, map(int, numbers), strict=True))))
            for start, owner, key_id, model, *numbers in rows
        ]

    def delete_before(self, hour: int) -> None:
        """Deletes the rows of hours before this one."""
        self._connection.execute("DELETE FROM usage_hours WHERE hour < ?", (hour,))
