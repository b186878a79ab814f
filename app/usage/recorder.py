"""Adds up what API keys use, and writes the sums of each hour to the store.

A row has the totals of one process for an hour, an owner, a key and a model, and each write replaces it: a write that
is repeated counts nothing twice. Of a process that is killed, what it has not written is missing: 10 seconds at most.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping

import structlog
from msgspec import Struct

from antiphon.app.errors import ApiError
from antiphon.app.store.history.usage_tables import UsageCounts, UsageQuery, UsageRow
from antiphon.app.store.store import ResponseStore
from antiphon.app.usage.limited_scope import BudgetWindow
from antiphon.app.usage.limits import find_window_end, find_window_start

USAGE_WRITE_INTERVAL_S = 10.0
"""Time between two writes of the sums."""
HOUR_S = 3600
"""Period of the sums that are stored."""
MINUTE_S = 60
"""Period of the sums that are kept in memory."""
KEPT_HOURS = 24
"""Number of hours whose totals stay in memory: after a clock was set back, they are added to."""
KEPT_MINUTES = 60
"""Number of minutes whose sums are kept one by one, in memory only."""
_log = structlog.get_logger(__name__)

_UserOfModel = tuple[str, str, str]
"""Owner, key id and model."""
_HourRow = tuple[int, str, str, str]
"""Start of the hour, in seconds since 1970, owner, key id and model."""
Spender = tuple[str, str]
"""Owner and key id. The tokens of all keys of an owner have the key id ""."""


class _Budgets(Struct):
    """Tokens that spenders have used, as the store knows them, and since then."""

    day_end: float = 0.0
    """End of the day that the sums are of, in seconds since 1970."""
    month_end: float = 0.0
    day: Mapping[Spender, int] = {}
    month: Mapping[Spender, int] = {}


class UsageRecorder:
    """Sums of this process. `clock` returns seconds since 1970."""

    def __init__(self, store: ResponseStore, clock: Callable[[], float] = time.time) -> None:
        self._store, self._clock = store, clock
        self._hours: dict[_HourRow, UsageCounts] = {}
        """Totals of the last hours."""
        self._changed: set[_HourRow] = set()
        self._minutes: deque[tuple[int, dict[_UserOfModel, UsageCounts]]] = deque(maxlen=KEPT_MINUTES + 1)
        self._minute = -MINUTE_S
        """Start of the minute of `_recent`, in seconds since 1970."""
        self._recent: dict[_UserOfModel, UsageCounts] = {}
        """Counts that the sums of hours and minutes get when they are read, not with each turn."""
        self._budgets = _Budgets()
        self._pending: dict[Spender, int] = {}
        self._in_flight: dict[Spender, int] = {}
        """Tokens of rows that are being written, or could not be written."""
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def add(self, owner: str, key_id: str, model: str, counts: UsageCounts) -> None:
        """Adds to the sums of now."""
        if not self._minute <= (now := self._clock()) < self._minute + MINUTE_S:
            self._add_recent()
            self._minute = int(now) - int(now) % MINUTE_S
        user = owner, key_id, model
        total = self._recent.get(user)
        if total is None:
            total = self._recent[user] = UsageCounts()
        total.add(counts)
        num_tokens = counts.input_tokens + counts.output_tokens
        if num_tokens:
            pending, spender = self._pending, (owner, "")
            pending[spender] = pending.get(spender, 0) + num_tokens
            if key_id:
                spender = owner, key_id
                pending[spender] = pending.get(spender, 0) + num_tokens

    def _add_recent(self) -> None:
        """Adds what is new to the sums of its hour and minute."""
        recent, self._recent = self._recent, {}
        if not recent:
            return
        if not self._minutes or self._minutes[-1][0] != self._minute:
            self._minutes.append((self._minute, {}))
        minute, hour = self._minutes[-1][1], self._minute - self._minute % HOUR_S
        for user, counts in recent.items():
            row = (hour, *user)
            self._hours.setdefault(row, UsageCounts()).add(counts)
            minute.setdefault(user, UsageCounts()).add(counts)
            self._changed.add(row)

    def used_tokens(self, owner: str, key_id: str | None, window: BudgetWindow) -> int:
        """Returns the tokens that an owner, or one of its keys, has used in the current day or month (UTC)."""
        spender, budgets = (owner, key_id or ""), self._budgets
        end, sums = (budgets.day_end, budgets.day) if window == "day" else (budgets.month_end, budgets.month)
        known = sums.get(spender, 0) if self._clock() < end else 0
        return known + self._in_flight.get(spender, 0) + self._pending.get(spender, 0)

    @property
    def num_kept_rows(self) -> int:
        """Number of rows in memory: sums of hours, of minutes, and of the current minute."""
        minutes = sum(len(rows) for _, rows in self._minutes)
        return len(self._hours) + len(self._changed) + minutes + len(self._recent)

    async def read_periods(self, query: UsageQuery) -> list[UsageRow]:
        """Returns sums of all servers; those of other servers are at most `USAGE_WRITE_INTERVAL_S` old."""
        await self.flush()
        return await self._store.read(lambda database: database.usage.sum_periods(query))

    def list_minutes(self) -> list[UsageRow]:
        """Returns the sums of this process for each of the last minutes."""
        self._add_recent()
        return [
            UsageRow(start, owner, key_id, model, counts)
            for start, rows in self._minutes
            for (owner, key_id, model), counts in rows.items()
        ]

    def start(self) -> None:
        """Begins to write the sums, after the tokens of this month are known."""
        self._task = asyncio.create_task(self._run(), name="usage")

    async def close(self) -> None:
        """Writes the sums a last time."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await self.flush()

    async def flush(self) -> bool:
        """Writes the sums that have changed, then reads what all servers have used. Returns False if the store fails.

        Rejections and failures are written, too, but only of keys that are valid: others never get here.
        """
        async with self._lock:
            return await self._flush()

    async def _flush(self) -> bool:
        self._add_recent()
        changed, self._changed = self._changed, set()
        for spender, num_tokens in self._pending.items():
            self._in_flight[spender] = self._in_flight.get(spender, 0) + num_tokens
        self._pending = {}
        rows = [UsageRow(*name, self._hours[name].copy()) for name in changed]
        now = self._clock()
        try:
            if rows:
                await self._store.change(lambda database: database.usage.save_rows(self._store.name, rows))
            await self._read_budgets(now)
        except ApiError:
            self._changed |= changed
            return False
        self._in_flight = {}
        self._forget_hours(int(now))
        return True

    async def _run(self) -> None:
        while True:
            try:
                await self.flush()
            except Exception:  # noqa: BLE001  # a bug; the next round begins again
                _log.exception("usage could not be written")
            await asyncio.sleep(USAGE_WRITE_INTERVAL_S)

    async def _read_budgets(self, now: float) -> None:
        day_start, month_start = find_window_start("day", now), find_window_start("month", now)
        sums = await self._store.read(
            lambda database: (
                database.usage.sum_tokens(int(day_start)),
                database.usage.sum_tokens(int(month_start)),
            )
        )
        self._budgets = _Budgets(
            find_window_end("day", now), find_window_end("month", now), _add_owners(sums[0]), _add_owners(sums[1])
        )

    def _forget_hours(self, now: int) -> None:
        """Forgets hours that are written and long gone, also by a clock that is set back."""
        oldest = now - KEPT_HOURS * HOUR_S
        for name in [name for name in self._hours if name[0] < oldest and name not in self._changed]:
            del self._hours[name]


def _add_owners(sums: Iterable[tuple[str, str, int]]) -> dict[Spender, int]:
    """Returns the tokens of each key, and of all keys of each owner."""
    found: Counter[Spender] = Counter()
    for owner, key_id, num_tokens in sums:
        found[owner, ""] += num_tokens
        if key_id:
            found[owner, key_id] += num_tokens
    return found
