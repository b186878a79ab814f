"""The endpoints of `/v1/inspect` that `antiphon inspect` reads. Values may have any shape: any server may answer."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from urllib.parse import quote

from antiphon.console.client import ReplyFailedError, ServerClient, describe_error
from antiphon.kit.json_values import Json, as_objects, as_text, decode_object

MAX_PAGE_EVENTS = 5_000
MAX_PAGE_TOKENS = 20_000
RUNNING_TURN_STATUSES = ("queued", "in_progress")


class PartMissingError(ReplyFailedError):
    """Raised if the server has not recorded a part of a turn. The message is its reason."""


class InspectApi:
    """Reads turns of one server. All methods raise `ReplyFailedError`."""

    def __init__(self, client: ServerClient) -> None:
        self._client = client

    async def find_last_turn(self, status: str = "") -> str | None:
        """Returns the id of the owner's last turn, or of the last one with a status; None if there is none."""
        query = f"&status={status}" if status else ""
        page = parse_object(await self._client.fetch(f"/inspect/turns?limit=1{query}"))
        turns = as_objects(page.get("data"))
        return as_text(turns[0].get("id")) or None if turns else None

    async def fetch_turn(self, turn_id: str) -> Json:
        """Returns the record of a turn."""
        return parse_object(await self._client.fetch(_turn_path(turn_id)))

    async def fetch_part(self, turn_id: str, part: str) -> bytes:
        """Returns a part as the server has it, such as `findings`. Raises `PartMissingError`."""
        content = await self._client.fetch(f"{_turn_path(turn_id)}/{part}")
        if content.startswith(b'{"missing"'):
            _check_line(parse_object(content))
        return content

    async def fetch_table(self) -> Json:
        """Returns the table of the server's state machine."""
        return parse_object(await self._client.fetch("/inspect/table"))

    async def read_events(self, turn_id: str) -> AsyncGenerator[Json, None]:
        """Yields the events that a turn has now, page by page."""
        path, after = f"{_turn_path(turn_id)}/events", -1
        while True:
            num_lines, last = 0, after
            async with aclosing(self.read_part(f"{path}?after={after}&limit={MAX_PAGE_EVENTS}")) as rows:
                async for row in rows:
                    num_lines, last = num_lines + 1, _read_number(row, last)
                    yield row
            if num_lines < MAX_PAGE_EVENTS:
                return
            after = last

    def follow_events(self, turn_id: str) -> AsyncGenerator[Json, None]:
        """Yields the events of a turn until it ends."""
        return self.read_part(f"{_turn_path(turn_id)}/events?follow=true")

    def read_reading(self, turn_id: str, api: str) -> AsyncGenerator[Json, None]:
        """Yields what an API would have sent."""
        return self.read_part(f"{_turn_path(turn_id)}/readings/{api}")

    async def read_prompt(self, turn_id: str) -> AsyncGenerator[Json, None]:
        """Yields the runs of tokens of all prompts, page by page. Raises `PartMissingError`."""
        path, num_read = f"{_turn_path(turn_id)}/prompt", 0
        while True:
            num_tokens = 0
            async with aclosing(self.read_part(f"{path}?after={num_read - 1}&limit={MAX_PAGE_TOKENS}")) as runs:
                async for run in runs:
                    num_tokens += len(as_list_of_integers(run.get("ids")))
                    yield run
            num_read += num_tokens
            if num_tokens < MAX_PAGE_TOKENS:
                return

    async def read_part(self, path: str) -> AsyncGenerator[Json, None]:
        """Yields the objects of JSON lines. Raises `PartMissingError`."""
        async with aclosing(self._client.read_lines(path)) as lines:
            async for line in lines:
                value = parse_object(line)
                _check_line(value)
                yield value


def _turn_path(turn_id: str) -> str:
    return f"/inspect/turns/{quote(turn_id, safe='')}"


def _read_number(row: Json, previous: int) -> int:
    number = row.get("n")
    if not isinstance(number, int) or number <= previous:
        raise ReplyFailedError(f"the server sent event {number!r} after event {previous}")
    return number


def _check_line(value: Json) -> None:
    """Raises an error that a line stands for, in place of what was asked for."""
    if "event" in value or "ids" in value or "data" in value:
        return
    if [*value] == ["missing"]:
        raise PartMissingError(str(value["missing"]))
    if "error" in value:
        raise ReplyFailedError(describe_error(value))


def parse_object(content: bytes) -> Json:
    """Returns the JSON object of a body or a line. Raises `ReplyFailedError`."""
    value = decode_object(content)
    if value is None:
        raise ReplyFailedError(f"the server sent no JSON object: {content[:200].decode(errors='replace')}")
    return value


def as_number(value: object) -> float | None:
    """Returns a number; None for anything else."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def as_list_of_integers(value: object) -> list[int]:
    """Returns a list of integers, or an empty one for anything else."""
    return value if isinstance(value, list) and all(type(each) is int for each in value) else []


def is_running(turn: Json) -> bool:
    """Tells whether a turn continues."""
    return turn.get("status") in RUNNING_TURN_STATUSES
