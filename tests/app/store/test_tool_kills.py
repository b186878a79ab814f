"""`kill -9` of a server that runs tools: a call is executed at most once, whatever is restarted, retried or taken over.

The tool runs in this process and counts how often each key was executed. Every call has a key of its own.
`ANTIPHON_TEST_FULL=1` kills 100 times in each test.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.store.store_helpers import StorePlace
from tests.app.tools.counting_servers import LABEL, CountingServers, Counts, build_script, serve_counter
from tests.counts import FULL_COUNTS
from tests.invariants import check_stream
from tests.progress import HANG_TIMEOUT_S

pytestmark = pytest.mark.processes

NUM_KILLS = 100 if FULL_COUNTS else 2
NUM_TAKEOVERS = 100 if FULL_COUNTS else 1
NUM_RACES = 50 if FULL_COUNTS else 8
NUM_REQUESTS = 8
"""Requests before each kill."""
MAX_KILL_DELAY_S = 0.6
"""Requests take about as long. So kills hit every part of them."""
MAX_RUN_S = 0.2
"""Every other kill comes at most so long after an execution has begun."""
TOOL_S = (0.0, 0.02, 0.2)
"""How long the executions take."""
MAX_TAKEOVER_S = 60.0
ON_SQLITE, ON_POSTGRES = (
    pytest.mark.parametrize("place", ["sqlite", "postgres"] if FULL_COUNTS else [name], indirect=True)
    for name in ("sqlite", "postgres")
)
TOOLS = [{"type": "mcp", "server_label": LABEL, "require_approval": "never"}]
ASKING_TOOLS = [{"type": "mcp", "server_label": LABEL, "require_approval": "always"}]
Json = dict[str, Any]


def list_inputs(count: int) -> dict[str, tuple[tuple[str, float], ...]]:
    """Returns the calls of each input. Every fourth input has two calls."""
    return {
        f"Request {number:05d}.": tuple(
            (f"{number}.{part}", TOOL_S[(number // 4 + part) % len(TOOL_S)])
            for part in range(2 if number % 4 == 1 else 1)
        )
        for number in range(count)
    }


@asynccontextmanager
async def open_servers(
    place: StorePlace, folder: Path, num_inputs: int
) -> AsyncIterator[tuple[CountingServers, Counts]]:
    """Serves the tool, and yields what starts server processes."""
    script = build_script(list_inputs(num_inputs))
    await asyncio.to_thread((folder / "script.json").write_text, json.dumps(script))
    async with serve_counter() as tool:
        yield CountingServers(store=place.name, tool_url=tool.url, folder=folder), tool.counts


class Clients:
    """Clients that send requests with new keys, and repeat those with an approval after a restart."""

    def __init__(self, client: httpx.AsyncClient, num_inputs: int) -> None:
        self._client = client
        self._inputs = iter(list_inputs(num_inputs))
        self.approvals: list[Json] = []
        """Requests with an approval, whether or not they were answered."""

    async def send_all(self, url: str) -> None:
        """Sends requests of every kind at once. They break when the server is killed."""
        senders = (self.send_background, self.send_background, self.send_foreground, self.send_approved)
        await asyncio.gather(*(senders[number % len(senders)](url) for number in range(NUM_REQUESTS)))

    async def send_background(self, url: str) -> None:
        await self._read_reply(url, input=next(self._inputs), background=True, stream=True, tools=TOOLS)

    async def send_foreground(self, url: str) -> None:
        await self._read_reply(url, input=next(self._inputs), stream=True, tools=TOOLS)

    async def send_approved(self, url: str) -> None:
        """Asks for an approval, and sends it."""
        reply = await self._read_reply(url, input=next(self._inputs), tools=ASKING_TOOLS)
        response = json.loads(reply) if reply else {"output": []}
        answers = [
            {"type": "mcp_approval_response", "approval_request_id": item["id"], "approve": True}
            for item in response["output"]
            if item["type"] == "mcp_approval_request"
        ]
        if answers:
            approval = {"input": answers, "previous_response_id": response["id"], "tools": ASKING_TOOLS, "stream": True}
            self.approvals.append(approval)
            await self._read_reply(url, **approval)

    async def repeat_approvals(self, url: str) -> list[int]:
        """Repeats the requests with an approval. Returns the status of each reply."""
        repeated, self.approvals = self.approvals, []
        replies = await asyncio.gather(
            *(self._client.post(f"{url}/responses", json={"model": "scripted", **body}) for body in repeated)
        )
        return [reply.status_code for reply in replies]

    async def _read_reply(self, url: str, **body: Any) -> str:
        """Returns the reply; an empty text if the connection broke."""
        try:
            return (await self._client.post(f"{url}/responses", json={"model": "scripted", **body})).text
        except httpx.HTTPError:
            return ""


class Judge:
    """Reads every response of the store once it must have ended, and compares its calls with the executions."""

    def __init__(self, place: StorePlace, client: httpx.AsyncClient, counts: Counts) -> None:
        self._place, self._client, self._counts = place, client, counts
        self._judged: set[str] = set()
        self.calls: Counter[str] = Counter()
        """Number of calls by what became of them."""
        self.responses: Counter[str] = Counter()
        """Number of responses by status."""

    async def judge_responses(self, url: str) -> None:
        """Asserts that each response not judged yet ends once, and that its calls were executed as it says."""
        rows = await asyncio.to_thread(self._place.read_rows, "SELECT id FROM responses")
        for response_id in sorted({str(row[0]) for row in rows} - self._judged):
            response = await self._read_ended(url, response_id)
            self._judged.add(response_id)
            self.responses[response["status"]] += 1
            for item in response["output"]:
                if item["type"] == "mcp_call":
                    self._judge_call(item, response["status"])
        most = max(self._counts.begun.values(), default=0)
        assert most <= 1, f"executed more than once: {self._counts.begun.most_common(3)}"

    async def _read_ended(self, url: str, response_id: str) -> Json:
        """Returns the response at the end of its stream, which the checker finds legal."""
        target = f"{url}/responses/{response_id}"
        try:
            async with asyncio.timeout(HANG_TIMEOUT_S):  # the client's own is for each read, and pings end it
                reply = await self._client.get(f"{target}?stream=true", timeout=MAX_TAKEOVER_S)
        except TimeoutError:
            raise AssertionError(f"{response_id} has not ended") from None
        lines = [line for line in reply.text.splitlines() if line.startswith("data: {")]
        response = check_stream([json.loads(line.removeprefix("data: ")) for line in lines])
        assert (await self._client.get(target)).json() == response
        return response

    def _judge_call(self, item: Json, status: str) -> None:
        key = parse_key(item["arguments"])
        begun, ended = self._counts.begun[key], self._counts.ended[key]
        if item["status"] == "failed":
            assert "its outcome is unknown" in json.dumps(item["error"]) and status == "completed", item
            self.calls["of an unknown outcome, run" if begun else "of an unknown outcome, not run"] += 1
        elif item["status"] == "completed":
            assert (begun, ended) == (1, 1), f"{key} was executed {begun} times"
            self.calls["completed"] += 1
        else:
            assert (item["status"], item["output"], status) == ("incomplete", None, "failed"), item
            self.calls["interrupted while it ran" if begun else "interrupted before it ran"] += 1


def parse_key(arguments: str) -> str:
    """Returns the key in the arguments; an empty text if they break off."""
    try:
        return str(json.loads(arguments)["key"])
    except json.JSONDecodeError:
        return ""


async def wait_for_moment(dice: random.Random, counts: Counts, sending: asyncio.Task[None]) -> None:
    """Waits for a random moment while requests are sent: after a time, or after the begin of an execution."""
    if dice.random() < 0.5:
        await asyncio.sleep(dice.uniform(0.0, MAX_KILL_DELAY_S))
        return
    target = counts.begun.total() + dice.randint(1, NUM_REQUESTS // 2)
    while counts.begun.total() < target and not sending.done():
        await asyncio.sleep(0.001)
    await asyncio.sleep(dice.uniform(0.0, MAX_RUN_S))


def check_repeated(statuses: list[int]) -> None:
    """Asserts that repeated approvals either ran now or were refused because they had been used."""
    assert set(statuses) <= {200, 400}, statuses


def check_moments(judge: Judge, num_kills: int) -> None:
    """Prints what the kills hit. Asserts that they hit all moments, if there were many."""
    print(f"{num_kills} kills; responses: {dict(judge.responses)}; calls: {dict(judge.calls)}")
    assert judge.calls["completed"]
    if FULL_COUNTS:
        assert len(judge.calls) >= 4, "kills hit before, while and after a tool ran, and responses went on"


@ON_SQLITE
@pytest.mark.timeout(300 + 20 * NUM_KILLS)
async def test_call_is_executed_at_most_once_when_the_server_is_killed_and_restarted(
    place: StorePlace, tmp_path: Path
) -> None:
    dice, num_inputs, statuses = random.Random(21), (NUM_KILLS + 1) * NUM_REQUESTS, list[int]()
    limits = httpx.Limits(max_connections=None)
    async with (
        open_servers(place, tmp_path, num_inputs) as (servers, counts),
        httpx.AsyncClient(timeout=HANG_TIMEOUT_S, limits=limits) as client,
    ):
        clients, judge = Clients(client, num_inputs), Judge(place, client, counts)
        for _ in range(NUM_KILLS):
            async with servers.run_server() as (url, kill):
                await judge.judge_responses(url)
                statuses += await clients.repeat_approvals(url)
                sending = asyncio.create_task(clients.send_all(url))
                await wait_for_moment(dice, counts, sending)
                kill()
                await sending
        async with servers.run_server() as (url, _):
            statuses += await clients.repeat_approvals(url)
            await clients.send_all(url)
            await judge.judge_responses(url)
    check_repeated(statuses)
    print(f"repeated approvals: {dict(Counter(statuses))}")
    check_moments(judge, NUM_KILLS)


@ON_POSTGRES
@pytest.mark.timeout(300 + 20 * NUM_TAKEOVERS)
async def test_call_is_executed_at_most_once_when_another_server_takes_over(place: StorePlace, tmp_path: Path) -> None:
    dice, num_inputs, statuses = random.Random(22), (NUM_TAKEOVERS + 1) * NUM_REQUESTS, list[int]()
    limits = httpx.Limits(max_connections=None)
    async with (
        open_servers(place, tmp_path, num_inputs) as (servers, counts),
        httpx.AsyncClient(timeout=HANG_TIMEOUT_S, limits=limits) as client,
        servers.run_server() as (other_url, _),
    ):
        clients, judge = Clients(client, num_inputs), Judge(place, client, counts)
        for _ in range(NUM_TAKEOVERS):
            async with servers.run_server() as (url, kill):
                sending = asyncio.create_task(clients.send_all(url))
                await wait_for_moment(dice, counts, sending)
                kill()
                statuses += await clients.repeat_approvals(other_url)
                await sending
            statuses += await clients.repeat_approvals(other_url)
            await judge.judge_responses(other_url)
        await clients.send_all(other_url)
        await judge.judge_responses(other_url)
    check_repeated(statuses)
    print(f"repeated approvals: {dict(Counter(statuses))}")
    check_moments(judge, NUM_TAKEOVERS)


@ON_POSTGRES
async def test_one_of_two_servers_runs_the_call_of_an_approval(place: StorePlace, tmp_path: Path) -> None:
    async with (
        open_servers(place, tmp_path, NUM_RACES) as (servers, counts),
        AsyncExitStack() as stack,
        httpx.AsyncClient(timeout=HANG_TIMEOUT_S) as client,
    ):
        starts = [stack.enter_async_context(servers.run_server()) for _ in range(2)]
        (url, _), (other_url, _) = await asyncio.gather(*starts)
        for number, text in enumerate(list_inputs(NUM_RACES)):
            asked = {"model": "scripted", "input": text, "tools": ASKING_TOOLS}
            response = (await client.post(f"{url}/responses", json=asked)).json()
            answers = [
                {"type": "mcp_approval_response", "approval_request_id": item["id"], "approve": True}
                for item in response["output"]
                if item["type"] == "mcp_approval_request"
            ]
            assert answers and not counts.begun.total()
            body = asked | {"input": answers, "previous_response_id": response["id"], "background": number % 2 == 1}
            replies = await asyncio.gather(*(client.post(f"{each}/responses", json=body) for each in (url, other_url)))
            (won,), (lost,) = (
                [reply.json() for reply in replies if reply.status_code == status] for status in (200, 400)
            )
            assert lost["error"]["param"] == "input" and "was answered before" in lost["error"]["message"]
            won_url = f"{url}/responses/{won['id']}"
            async with asyncio.timeout(HANG_TIMEOUT_S):
                while won["status"] in ("queued", "in_progress"):
                    won = (await client.get(won_url)).json()
            calls = [item for item in won["output"] if item["type"] == "mcp_call"]
            assert [call["status"] for call in calls] == ["completed"] * len(answers)
            assert counts.begun == dict.fromkeys((parse_key(call["arguments"]) for call in calls), 1)
            counts.begun.clear()
