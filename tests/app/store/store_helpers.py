"""Shared by the tests of stores: logs with four steps, a store that is closed at the end, and a server program."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import structs

from antiphon.app.event_log import EntryDetail, EventLog
from antiphon.app.store.base import ChatForm, ResponseStore, StoredCompletion
from antiphon.app.store.sqlite.store import SqliteStore
from antiphon.app.store.write_ops import StoreTimings
from antiphon.app.turns.stored_history import with_ids
from antiphon.events.base import Event
from antiphon.events.inputs import HostedInput, InputMessage
from antiphon.events.response import Response
from antiphon.state.segments import Say
from tests.state.machine_helpers import create_machine

SERVER_PROGRAM = """
import sys
sys.path.insert(0, ROOT)
import uvloop
from pathlib import Path
from antiphon.app.context import create_context
from antiphon.app.server import bind_socket, run_server
from antiphon.app.settings import Settings
from antiphon.app.store.factory import open_store
from tests.serving import scripted_registry

OUTPUT = "<think>\\nLet me see.\\n</think>\\n\\n" + "word " * 40
SCRIPT = [{"name": "long", "output": [OUTPUT], "tokens_per_chunk": 2}]

async def main(path):
    settings = Settings(port=0, shutdown_timeout=0.2, store_file=Path(path))
    with bind_socket(settings) as listener:
        store = open_store(settings)
        context = create_context(settings, scripted_registry(SCRIPT, delay=0.003), store=store)
        on_ready = lambda port: print(port, flush=True)
        await run_server(context, listener, on_ready=on_ready, on_request_done=lambda record: None)
        await store.close()

uvloop.run(main(*sys.argv[1:]))
"""
"""Program of a server process over a store file, its only argument. Prints its port."""
SHORT_TIMINGS = StoreTimings(heartbeat_s=0.05, lease_s=0.4, sweep_interval_s=0.05)
INPUT_ITEMS = (InputMessage(role="user", content="hi"), HostedInput(kind="web_search_call", payload={"query": "x"}))


@asynccontextmanager
async def open_test_store(path: Path, **options: Any) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, **{"timings": SHORT_TIMINGS, **options})
    try:
        yield store
    finally:
        await store.close()


async def add_completion(
    store: ResponseStore,
    name: str,
    *,
    owner: str = "me",
    created: int = 2_000_000_000,
    counts: Sequence[int] = (4, 4),
    metadata: dict[str, str] | None = None,
    detail: EntryDetail | None = None,
) -> StoredCompletion:
    """Adds a chat completion and appends the first steps, as many as in `counts`, of each of its choices.

    Returns when the choices with all four steps are stored.
    """
    ids = [f"chatcmpl_{name}{number}" for number in range(len(counts))]
    responses = [structs.replace(make_response(name, created=created), id=choice_id) for choice_id in ids]
    logs = [EventLog(response, owner, keeps_details=True) for response in responses]
    completion = StoredCompletion(
        id=ids[0], created_at=created, model="m", metadata=metadata or {}, choice_ids=tuple(ids), form=ChatForm()
    )
    for log in logs:
        log.append_step(make_steps()[0])
    store.add_completion(completion, ({"role": "user", "content": name},), logs)
    for log, count in zip(logs, counts, strict=True):
        for step in make_steps()[1:count]:
            log.append_step(step, detail)
        if count == 4:
            log.end_log()
            await log.wait_published()
    return completion


def make_response(name: str, *, background: bool = False, created: int = 2_000_000_000) -> Response:
    return Response(id=f"resp_{name}", created_at=created, model="m", background=background, metadata={"a": "b"})


def make_steps() -> list[list[Event]]:
    machine = create_machine()
    return [machine.begin(), machine.feed(Say("a")), machine.feed(Say("b")), machine.stop()]


def add_log(store: SqliteStore, name: str, count: int = 4, owner: str = "me", **options: Any) -> EventLog:
    """Adds a log to the store and appends the first `count` of its four steps."""
    first = make_response(name, **options)
    log = EventLog(first, owner, with_ids(INPUT_ITEMS, first.id))
    for number, step in enumerate(make_steps()[:count]):
        log.append_step(step)
        if number == 0:
            store.add_log(log)
    if count == 4:
        log.end_log()
    return log
