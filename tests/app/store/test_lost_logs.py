"""A server that paused for longer than its lease: its responses belong to others, and its readers get what is stored."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosedError
from websockets.sync.client import connect

from antiphon.app.route_helpers import http_replies
from antiphon.app.routes import responses
from antiphon.app.store.database import Database
from antiphon.app.store.history.step_rows import NewStep
from antiphon.app.store.postgres.database import PostgresDatabase
from antiphon.app.store.store import ResponseStore
from antiphon.app.store.writing.tracked_logs import TrackedLogs
from antiphon.app.store.writing.write_ops import StoreTimings
from antiphon.app.store.writing.writer_lease import HeartbeatWatch
from antiphon.app.turn_types.event_log import EventLog, LogDivergedError, LogEntry, is_terminal
from antiphon.app.websocket.endpoint import SERVICE_RESTART
from antiphon.state.recovery import failure_events
from tests.app.store.store_helpers import PostgresPlace, StorePlace, add_log, make_steps, take_over
from tests.invariants import check_stream
from tests.progress import HANG_TIMEOUT_S, wait_with_progress
from tests.serving import RunningServer, serve

OTHER = "elsewhere:1:2:ab"
"""Name of the server that takes responses over."""
PATIENT_TIMINGS = StoreTimings(heartbeat_s=3600.0, lease_s=7200.0)
"""With these, a server notices a loss when it writes the next step of the response."""
SCRIPT: list[dict[str, Any]] = [
    {"name": "talk", "when": ["Talk"], "output": [step for _ in range(2000) for step in ("word ", {"pause": 0.02})]},
    {"name": "slow", "output": ["one ", {"pause": 0.1}, "two ", {"stall": True}]},
]


@pytest.fixture(autouse=True)
def _all_are_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the servers of the tests from ending what the other one has taken over."""
    monkeypatch.setattr(HeartbeatWatch, "is_alive", lambda *_: True)


class OtherServer:
    """Writes the responses of a store that it has taken over, by the statements of a writer."""

    def __init__(self, place: StorePlace) -> None:
        self._database: Database = place.open_database()

    def close(self) -> None:
        self._database.close()

    def take_over(self, response_id: str, writer: str) -> None:
        take_over(self._database, response_id, writer, OTHER)

    def append(self, owner: str, response_id: str, entries: list[LogEntry]) -> None:
        detail = NewStep(owner, response_id, entries, keep_details=True)
        self._database.begin(sync=True)
        assert not self._database.append_steps([detail], OTHER)
        self._database.commit()

    def load(self, response_id: str) -> list[LogEntry]:
        return self._database.load_entries(response_id)

    def fail(self, owner: str, response_id: str) -> list[LogEntry]:
        """Ends a response as one whose server is dead. Returns all that is stored of it."""
        events = [entry.event for entry in self.load(response_id)]
        missing = failure_events(events, code="server_restarted", message="stopped")
        self.append(owner, response_id, [LogEntry.from_event(event) for event in missing])
        return self.load(response_id)

    def delete(self, response_id: str) -> None:
        self._database.begin(sync=True)
        self._database.delete_response(response_id)
        self._database.commit()


class Reading:
    """The entries that a reader of a log gets, until the log ends or the reader is broken off."""

    def __init__(self, log: EventLog, start: int = 0) -> None:
        self.entries: list[LogEntry] = []
        self.task = asyncio.create_task(self._read(log, start))

    async def _read(self, log: EventLog, start: int) -> None:
        async for entries in log.follow_entries(start):
            self.entries += entries

    async def is_whole(self) -> bool:
        """Waits for the end. Returns False if the reader was broken off."""
        try:
            await asyncio.wait_for(self.task, HANG_TIMEOUT_S)
        except LogDivergedError:
            return False
        return True


@asynccontextmanager
async def open_pair(place: StorePlace, **options: Any) -> AsyncIterator[tuple[ResponseStore, OtherServer]]:
    async with place.open(**options) as store:
        other = OtherServer(place)
        yield store, other
        other.close()


async def becomes_true(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(HANG_TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("background", [True, False])
async def test_reader_of_stored_events_gets_those_of_the_new_writer(place: StorePlace, *, background: bool) -> None:
    async with open_pair(place) as (store, other):
        cancelled: list[str] = []
        store.on_cancel_request(cancelled.append)
        log = add_log(store, "a", count=2, background=background)
        await log.wait_kept()
        readings = [Reading(log), Reading(log, 1), Reading(log, 1000)]
        await becomes_true(lambda: len(readings[0].entries) == len(log.entries))
        finished = asyncio.create_task(log.wait_finished())
        other.take_over(log.id, store.name)
        await becomes_true(lambda: cancelled)
        log.append_step(make_steps()[2])
        log.end_log()
        assert not log.ended, "the turn that runs here can neither write nor end the log"
        stored = other.fail("me", log.id)
        assert all([await reading.is_whole() for reading in readings])
        assert [len(reading.entries) for reading in readings] == [len(stored), len(stored) - 1, 0]
        assert [entry.data for entry in readings[0].entries] == [entry.data for entry in stored]
        check_stream([json.loads(entry.data) for entry in readings[0].entries])
        response = await asyncio.wait_for(finished, HANG_TIMEOUT_S)
        assert response.error is not None and response.error.code == "server_restarted" and cancelled == [log.id]
        assert await store.read_log("me", log.id) is log and log.response == response
        assert log.size == sum(len(entry.data) for entry in stored) and not store.debug.logs.remote


async def test_reader_of_other_events_is_broken_off_without_an_end(place: StorePlace) -> None:
    async with open_pair(place, timings=PATIENT_TIMINGS) as (store, other):
        log = add_log(store, "a", count=2)
        await log.wait_kept()
        other.take_over(log.id, store.name)
        early, late, finished = Reading(log), Reading(log, 3), asyncio.create_task(log.wait_finished())
        log.append_step(make_steps()[2])
        seen = len(log.entries)
        await becomes_true(lambda: log.is_lost)
        assert len(early.entries) == seen, "a foreground step is shown before it is written"
        resumed = Reading(log, seen)
        stored = other.fail("me", log.id)
        assert not await early.is_whole() and not await late.is_whole() and await resumed.is_whole()
        assert not is_terminal(early.entries)
        assert (await asyncio.wait_for(finished, HANG_TIMEOUT_S)).status == "failed"
        assert [entry.data for entry in log.entries] == [entry.data for entry in stored]


async def test_log_that_had_ended_here_but_not_in_the_store_continues(place: StorePlace) -> None:
    async with open_pair(place, timings=PATIENT_TIMINGS) as (store, other):
        log = add_log(store, "a", count=3)
        await log.wait_kept()
        other.take_over(log.id, store.name)
        reading = Reading(log)
        log.append_step(make_steps()[3])
        log.end_log()
        await becomes_true(lambda: log.is_lost)
        stored = other.fail("me", log.id)
        assert await reading.is_whole(), "the last step was withheld"
        assert reading.entries[-1].data == stored[-1].data


async def test_reader_whose_events_turn_out_to_be_stored_continues(place: StorePlace) -> None:
    """The writer did not learn that a COMMIT was made."""
    async with open_pair(place, timings=PATIENT_TIMINGS) as (store, other):
        log = add_log(store, "a", count=2)
        await log.wait_kept()
        other.take_over(log.id, store.name)
        reading = Reading(log)
        log.append_step(make_steps()[2])
        last = [LogEntry.from_event(event) for event in make_steps()[3]]
        other.append("me", log.id, log.entries[-len(make_steps()[2]) :])
        await becomes_true(lambda: log.is_lost)
        other.append("me", log.id, last)
        assert await reading.is_whole()
        assert [entry.data for entry in reading.entries] == [entry.data for entry in other.load(log.id)]


async def test_readers_of_a_log_that_was_deleted_elsewhere_keep_what_they_saw(place: StorePlace) -> None:
    async with open_pair(place, timings=PATIENT_TIMINGS) as (store, other):
        log = add_log(store, "a", count=2)
        await log.wait_kept()
        other.delete(log.id)
        reading = Reading(log)
        log.append_step(make_steps()[2])
        assert await reading.is_whole()
        check_stream([json.loads(entry.data) for entry in reading.entries])
        assert (await log.wait_finished()).error.message == "The response was deleted."  # type: ignore[union-attr]
        assert await store.read_log("me", log.id) is None or log.ended


async def test_lost_log_that_comes_back_is_followed_twice(place: StorePlace) -> None:
    """The server takes its response back, and loses it again. Readers of both times get the rest."""
    async with open_pair(place) as (store, other):
        first = add_log(store, "a", count=1, background=True)
        await first.wait_kept()
        other.take_over(first.id, store.name)
        await becomes_true(lambda: first.is_lost)
        database = place.open_database()
        take_over(database, first.id, OTHER, store.name)
        second, _ = database.find_log("me", first.id)  # type: ignore[misc]
        database.close()
        store.adopt_log(second)
        second.append_step(make_steps()[1])
        await second.wait_kept()
        readings = [Reading(first), Reading(second)]
        other.take_over(first.id, store.name)
        await becomes_true(lambda: second.is_lost)
        stored = other.fail("me", first.id)
        for reading in readings:
            assert await reading.is_whole()
            assert [entry.data for entry in reading.entries] == [entry.data for entry in stored]


async def test_damaged_event_of_another_server_ends_the_reading(place: StorePlace) -> None:
    async with open_pair(place) as (store, other):
        log = add_log(store, "a", count=2, background=True)
        await log.wait_kept()
        other.take_over(log.id, store.name)
        reading = Reading(log)
        await becomes_true(lambda: log.is_lost)
        number = len(log.entries)
        place.read_rows(
            f"INSERT INTO events (response, number, data) VALUES ('{log.id}', {number}, {place.quote_bytes('{')})"
        )
        assert await reading.is_whole()
        assert "damaged" in (await log.wait_finished()).error.message  # type: ignore[union-attr]


async def test_nothing_is_taken_over_in_the_middle_of_a_transaction_of_its_writer(
    postgres_place: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the event that the writer is inserting would be stored after the other server has read the last one."""
    results: list[bool] = []
    append_steps = PostgresDatabase.append_steps

    def append_while_another_takes_over(database: PostgresDatabase, steps: Sequence[NewStep], writer: str) -> set[str]:
        lost = append_steps(database, steps, writer)
        if any(len(step.entries) == len(make_steps()[1]) for step in steps):
            other = postgres_place.open_database()
            other.begin(sync=True)
            results.append(other.take_over(steps[0].response_id, writer, OTHER))
            other.commit()
            other.close()
        return lost

    async with postgres_place.open() as store:
        log = add_log(store, "a", count=1)
        await log.wait_kept()
        monkeypatch.setattr(PostgresDatabase, "append_steps", append_while_another_takes_over)
        log.append_step(make_steps()[1])
        assert await log.wait_kept() and results == [False]


async def test_steps_of_deleted_logs_leave_no_id_behind(place: StorePlace) -> None:
    async with place.open() as store:
        for name in "abc":
            log = add_log(store, name, count=2)
            deleting = asyncio.create_task(store.delete_response("me", log.id))
            await deleting
        assert not store.debug.logs._persisted


# Whole requests


@pytest.fixture
def server(place: StorePlace) -> Iterator[RunningServer]:
    with serve(SCRIPT, **place.settings()) as running:
        yield running


@pytest.fixture
def early_server(place: StorePlace) -> Iterator[RunningServer]:
    """A server that shows events before they are committed."""
    with serve(SCRIPT, show_uncommitted=True, **place.settings()) as running:
        yield running


@contextmanager
def other_server(place: StorePlace) -> Iterator[OtherServer]:
    other = OtherServer(place)
    try:
        yield other
    finally:
        other.close()


class Request:
    """A request in a thread: what it receives, and how the connection ends."""

    def __init__(self, server: RunningServer, path: str, body: dict[str, Any] | None = None) -> None:
        self.lines: list[str] = []
        self.is_cut = False
        self._url, self._body = f"{server.url}{path}", body
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        method = "GET" if self._body is None else "POST"
        try:
            with httpx.stream(method, self._url, json=self._body, timeout=HANG_TIMEOUT_S) as reply:
                for line in reply.iter_lines():
                    self.lines.append(line)
        except httpx.RemoteProtocolError:
            self.is_cut = True

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line.removeprefix("data: ")) for line in list(self.lines) if line.startswith("data: {")]

    def join(self) -> None:
        self._thread.join(HANG_TIMEOUT_S)
        assert not self._thread.is_alive()


def start(server: RunningServer, path: str = "/responses", **fields: Any) -> Request:
    sent = {} if "messages" in fields else {"input": "Hi"}
    return Request(server, path, {"model": "scripted", **sent, **fields})


def find_id(place: StorePlace) -> str:
    """Returns the id of the only response that runs, once its second word is stored."""
    rows: list[tuple[Any, ...]] = []

    def is_stored() -> bool:
        rows[:] = place.read_rows(
            "SELECT response, count(*) FROM events JOIN responses ON id = response WHERE writer IS NOT NULL GROUP BY response"
        )
        return bool(rows and rows[0][1] >= 6)

    wait_with_progress(is_stored, "the words are stored")
    [(response_id, _)] = rows
    return str(response_id)


def lose(server: RunningServer, other: OtherServer, response_id: str) -> None:
    other.take_over(response_id, server.context.store.name)


def test_background_stream_and_reads_continue_with_the_new_writer(server: RunningServer, place: StorePlace) -> None:
    with other_server(place) as other:
        streamed = start(server, background=True, stream=True)
        response_id = find_id(place)
        second = Request(server, f"/responses/{response_id}?stream=true")
        lose(server, other, response_id)
        running = httpx.get(f"{server.url}/responses/{response_id}").json()
        assert running["status"] == "in_progress"
        cancelling = Request(server, f"/responses/{response_id}/cancel", {})
        stored = [json.loads(entry.data) for entry in other.fail("", response_id)]
        for request in (streamed, second):
            request.join()
            assert request.events() == stored and not request.is_cut
        cancelling.join()
        final = httpx.get(f"{server.url}/responses/{response_id}").json()
        assert final == stored[-1]["response"] == json.loads(cancelling.lines[0])
        assert httpx.get(f"{server.root}/ready").status_code == 200


def test_cancellation_that_the_writer_never_answers_ends(
    server: RunningServer, place: StorePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses, "MAX_CANCEL_WAIT_S", 0.3)
    with other_server(place) as other:
        streamed = start(server, background=True, stream=True)
        response_id = find_id(place)
        lose(server, other, response_id)
        wait_with_progress(lambda: not server.context.turn_manager.num_running, "the server notices the loss")
        reply = httpx.post(f"{server.url}/responses/{response_id}/cancel", timeout=HANG_TIMEOUT_S)
        assert reply.status_code == 503 and reply.headers["retry-after"] == "1"
        assert reply.json()["error"]["code"] == "cancel_pending"
        assert place.read_rows("SELECT cancel_requested FROM responses") == [(1,)], "the other server will find it"
        assert httpx.get(f"{server.url}/responses/{response_id}").json()["status"] == "in_progress"
        other.fail("", response_id)
        streamed.join()


def test_replies_in_one_piece_are_those_of_the_store(server: RunningServer, place: StorePlace) -> None:
    with other_server(place) as other:
        whole = start(server)
        response_id = find_id(place)
        lose(server, other, response_id)
        stored = other.fail("", response_id)
        whole.join()
        assert json.loads(whole.lines[0]) == json.loads(stored[-1].data)["response"]
        chat = start(server, "/chat/completions", messages=[{"role": "user", "content": "Hi"}], store=True)
        response_id = find_id(place)
        lose(server, other, response_id)
        other.fail("", response_id)
        chat.join()
        assert json.loads(chat.lines[0])["error"]["code"] == "server_restarted"


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/responses", {}),
        ("/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "store": True}),
    ],
)
def test_reply_in_one_piece_whose_new_writer_never_ends_it_is_an_error(
    server: RunningServer, place: StorePlace, monkeypatch: pytest.MonkeyPatch, path: str, fields: dict[str, Any]
) -> None:
    monkeypatch.setattr(http_replies, "MAX_LOST_WAIT_S", 0.3)
    with other_server(place) as other:
        whole = start(server, path, **fields)
        response_id = find_id(place)
        lose(server, other, response_id)
        whole.join()
        error = json.loads(whole.lines[0])["error"]
        assert (error["code"], error["type"]) == ("response_lost", "server_error") and "retry" in error["message"]
        other.fail("", response_id)


@pytest.fixture
def _noticed_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a server notice a loss only when it writes a step, and once its readers have taken that step."""
    release = TrackedLogs._release_log

    def release_once_read(logs: TrackedLogs, log: EventLog) -> None:
        if any(reader.has_entries for reader in log.open_readers):
            logs.loop.call_soon(release_once_read, logs, log)
        else:
            release(logs, log)

    monkeypatch.setattr(TrackedLogs, "on_heartbeat", lambda *_: None)
    monkeypatch.setattr(TrackedLogs, "_release_log", release_once_read)


@pytest.mark.usefixtures("_noticed_late")
def test_stream_that_has_shown_other_events_is_cut(early_server: RunningServer, place: StorePlace) -> None:
    server = early_server
    with other_server(place) as other:
        streamed = start(server, stream=True, input="Talk")
        response_id = find_id(place)
        lose(server, other, response_id)
        stored = other.fail("", response_id)
        streamed.join()
        assert streamed.is_cut and "data: [DONE]" not in streamed.lines
        assert streamed.events()[-1]["type"] == "response.output_text.delta"
        again = Request(server, f"/responses/{response_id}?stream=true")
        again.join()
        assert again.events() == [json.loads(entry.data) for entry in stored] and not again.is_cut


@pytest.mark.usefixtures("_noticed_late")
def test_websocket_that_has_shown_other_events_is_closed(early_server: RunningServer, place: StorePlace) -> None:
    server = early_server
    with other_server(place) as other, connect(f"ws://127.0.0.1:{server.port}/v1/responses") as socket:
        socket.send(json.dumps({"type": "response.create", "model": "scripted", "input": "Talk"}))
        response_id = find_id(place)
        lose(server, other, response_id)
        other.fail("", response_id)
        kinds: list[str] = []
        with pytest.raises(ConnectionClosedError):
            kinds.extend(json.loads(message)["type"] for message in socket)
        assert kinds[-1] == "response.output_text.delta" and socket.close_code == SERVICE_RESTART


@pytest.mark.usefixtures("_noticed_late")
def test_reply_in_one_piece_begins_again_with_what_is_stored(early_server: RunningServer, place: StorePlace) -> None:
    """A chat completion folds events as they come: also those that are not stored."""
    server = early_server
    with other_server(place) as other:
        chat = start(server, "/chat/completions", messages=[{"role": "user", "content": "Talk"}], store=True)
        response_id = find_id(place)
        lose(server, other, response_id)
        other.fail("", response_id)
        chat.join()
        assert json.loads(chat.lines[0])["error"]["code"] == "server_restarted" and not chat.is_cut
