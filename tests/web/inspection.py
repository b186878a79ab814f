"""Replies of `/v1/inspect` for tests of views, in the form of the API: for what no server here answers soon or at all."""

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

from antiphon.app.http.asgi import AsgiApp
from antiphon.app.projections.inspection.steps import build_table

Json = dict[str, Any]


def make_summary(number: int, **changes: Any) -> Json:
    """Returns the summary of a turn."""
    summary = {
        "id": f"resp_{number}",
        "api": "responses",
        "model": "coder",
        "status": "completed",
        "ending": {"cause": "stop_token", "detail": "151645"},
        "description": "The model ended its turn.",
        "created_at": 1_790_000_000 + number,
        "seconds": 3.125,
        "input_tokens": 8120,
        "cached_tokens": 7936,
        "output_tokens": 212,
        "tools": ["shell"],
    }
    return summary | changes


class FakeInspection:
    """Answers the requests of a tab for `/v1/inspect`. `queries` are those of the list, in order."""

    def __init__(self, turns: list[Json] | None = None, events: list[Json] | None = None, **record: Any) -> None:
        self.turns, self.events, self.record = turns or [], events or [], record
        self.findings: list[Json] = []
        self.table = build_table()
        self.queries: list[dict[str, list[str]]] = []

    def attach(self, page: Any) -> None:
        page.route("**/v1/inspect/**", self.answer)

    def answer(self, route: Any) -> None:
        parts = urlsplit(route.request.url)
        query = parse_qs(parts.query)
        path = parts.path.partition("/v1/inspect/")[2]
        if path == "turns":
            self.queries.append(query)
            _fulfill(route, self._list(query))
        elif path == "table":
            _fulfill(route, self.table)
        elif path.endswith("/findings"):
            _fulfill(route, {"object": "list", "data": self.findings, "complete": True})
        elif path.endswith("/events"):
            after, limit = int(query.get("after", ["-1"])[0]), int(query.get("limit", ["5000"])[0])
            rows = self.events[after + 1 : after + 1 + limit]
            route.fulfill(content_type="application/x-ndjson", body="".join(json.dumps(row) + "\n" for row in rows))
        elif self.record:
            _fulfill(route, self.record)
        else:
            _fulfill(route, {"error": {"message": "There is no such turn.", "code": "not_found"}}, 404)

    def _list(self, query: dict[str, list[str]]) -> Json:
        limit = int(query["limit"][0])
        first = 0
        if "after" in query:
            first = 1 + next(i for i, turn in enumerate(self.turns) if turn["id"] == query["after"][0])
        found = self.turns[first : first + limit]
        return {"object": "list", "data": found, "has_more": first + limit < len(self.turns)}


def _fulfill(route: Any, body: Json, status: int = 200) -> None:
    route.fulfill(status=status, content_type="application/json", body=json.dumps(body))


def make_rows(events: list[Json], describe: Callable[[Json], Json] = lambda _: {}) -> list[Json]:
    """Returns the lines of a log for these events. `describe` adds to the line of an event."""
    return [{"n": n, "step": n, "at_us": 1000 * n, "event": event} | describe(event) for n, event in enumerate(events)]


def answer_with(rows: list[Json]) -> Callable[[AsgiApp], AsgiApp]:
    """Returns what wraps a server, and answers requests for the turn `resp_1` with these lines.

    The browser gets a long log sooner from a server than from `FakeInspection`, whose bodies pass through Playwright.
    """
    lines = [json.dumps(row).encode() + b"\n" for row in rows]
    others = {"turns/resp_1": make_summary(1), "table": build_table()}

    def wrap_app(app: AsgiApp) -> AsgiApp:
        async def answer(scope: Any, receive: Any, send: Any) -> None:
            path = scope.get("path", "")
            if not path.startswith("/v1/inspect/"):
                await app(scope, receive, send)
                return
            query = parse_qs(scope["query_string"].decode())
            first, limit = int(query.get("after", ["-1"])[0]) + 1, int(query.get("limit", ["0"])[0])
            body = b"".join(lines[first : first + limit])
            if not path.endswith("/events"):
                body = json.dumps(others.get(path.removeprefix("/v1/inspect/"), {"data": []})).encode()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": body})

        return answer

    return wrap_app
