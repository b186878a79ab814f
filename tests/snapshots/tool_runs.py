"""Runs a case with tools of the server without a socket: a scripted engine, and tool servers that answer from a table."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from antiphon.app.errors import ApiError
from antiphon.app.inspection.recorder import TurnRecorder
from antiphon.app.projections import responses
from antiphon.app.registry.model_registry import ModelRegistry
from antiphon.app.requests.responses import request as responses_request
from antiphon.app.store.sqlite.store import MemoryStore
from antiphon.app.tools.approvals import ApprovalSigner
from antiphon.app.tools.approved_calls import ApprovalReader
from antiphon.app.tools.hosted_options import HostedOptions
from antiphon.app.tools.hosted_tools import HostedTools
from antiphon.app.tools.mcp.results import convert_error
from antiphon.app.tools.mcp.tool_lists import ListedTool, ToolList
from antiphon.app.tools.mcp.tool_server import ToolServer
from antiphon.app.tools.mcp.tool_servers import ToolServers
from antiphon.app.tools.outcome import ToolOutcome
from antiphon.app.tools.tool_host import HostPolicy, ToolHost
from antiphon.app.turn_types.encryption import SEAL_KEY_BYTES
from antiphon.app.turn_types.event_log import EventLog
from antiphon.app.turn_types.ids import new_id
from antiphon.app.turns.core.turn_core import TurnCore
from antiphon.app.turns.manager import TurnManager
from antiphon.app.turns.stored_history import StoredHistory
from antiphon.app.turns.timeouts import TurnTimeouts
from antiphon.engine.protocol import EngineInfo, Job
from antiphon.events.hosted import McpCallError, McpExecutionError
from tests.progress import HANG_TIMEOUT_S
from tests.serving import scripted_registry
from tests.snapshots.run_case import PlainSealer, collect_frames, load_case_format, make_origin, make_turn_manager

LABEL = "maps"
MCP = {"type": "mcp", "server_label": LABEL, "require_approval": "never"}
QUESTION = "Where is it?"
_SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}}
LISTED_TOOLS = (ListedTool(name="find", description="Finds a place.", input_schema=_SCHEMA, read_only=True),)

Answer = str | McpCallError
"""What a tool answers: a text, or the error of a call that has failed."""


class FakeToolServers:
    """The operator's tool server `maps`. `answers` has those of each tool in order; the last one is repeated.

    A call waits while `gate` is not set. `calls` are those that were made, with their arguments.
    """

    def __init__(self, answers: Mapping[str, Sequence[Answer]]) -> None:
        self.servers = {LABEL: ToolServer(label=LABEL, url="https://maps.example/mcp", is_operator=True)}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.num_cancelled = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self._answers = {name: list(each) for name, each in answers.items()}

    async def list_tools(self, _server: ToolServer, _owner: str) -> ToolList:
        return ToolList(LISTED_TOOLS, 0.0)

    async def call_tool(self, server: ToolServer, name: str, arguments: dict[str, Any]) -> ToolOutcome:
        assert server.label == LABEL
        self.calls.append((name, arguments))
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        answers = self._answers[name]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, str):
            return ToolOutcome(text=answer)
        if isinstance(answer, McpExecutionError):
            return ToolOutcome(text=f"The tool failed:\n{answer.content[0]['text']}", error=answer)
        return convert_error(answer)

    async def close(self) -> None:
        """Does nothing: there are no connections."""


@dataclass(frozen=True)
class Reply:
    """What the model writes in one round. The prompt contains all of `when`."""

    output: Sequence[Any]
    when: tuple[str, ...] = ()
    finish: str = "stop"
    cached_tokens: int = 0


@dataclass(frozen=True)
class ToolCase:
    """Outputs of a model in the rounds of one turn, and what the tools answer."""

    name: str
    rounds: Sequence[Reply]
    comment: str = ""
    answers: Mapping[str, Sequence[Answer]] = field(default_factory=dict)
    request: Mapping[str, Any] = field(default_factory=dict)
    dialect: str = "hermes"
    step: int = 0
    """Tokens of a chunk of the engine. 0: one chunk for each text of an output."""
    waits: bool = False
    """Calls wait until the act lets them continue."""
    act: "Callable[[ToolRun], Awaitable[None]] | None" = None
    """What happens from outside while the turn runs."""
    keepalive_after_s: float = 60.0
    max_model_len: int = 131_072
    given_up: bool = False
    """The store gives up the log of the turn."""
    earlier: "ToolCase | None" = None
    """The turn before this one."""
    follow: Callable[[dict[str, Any]], dict[str, Any]] = lambda _: {}
    """Returns fields of the request, for the response of the earlier turn."""


class ToolRun:
    """The server of a case, and the turn that runs."""

    def __init__(
        self,
        case: ToolCase,
        store: MemoryStore,
        registry: ModelRegistry | None = None,
        recorder: TurnRecorder | None = None,
    ) -> None:
        self.case, self.store = case, store
        self.servers = FakeToolServers(case.answers)
        if case.waits:
            self.servers.gate.clear()
        self.jobs: list[Job] = []
        """The jobs that a scripted engine got."""
        sealer = PlainSealer(b"x" * SEAL_KEY_BYTES)
        signer = ApprovalReader(ApprovalSigner(sealer.derive_key("approvals")))
        servers = cast("ToolServers", self.servers)
        self.manager: TurnManager = make_turn_manager(
            store=store,
            sealer=sealer,
            recorder=recorder,
            tool_host=ToolHost(servers, HostedTools(HostedOptions(), servers, new_id, None), signer, HostPolicy()),
            timeouts=TurnTimeouts(keepalive_after_s=case.keepalive_after_s),
        )
        self.registry = registry or _build_registry(case)
        (self.model,) = self.registry.served
        if registry is None:
            self.model.engine.on_reply = lambda job, _: self.jobs.append(job)  # type: ignore[attr-defined]
        self.log: EventLog | None = None
        if case.given_up:
            store.add_log = lambda log, _=None: log.mark_given_up()  # type: ignore[method-assign,assignment,misc]

    async def start_turn(self, **fields: Any) -> EventLog:
        """Starts a turn. Raises `ApiError`."""
        body = {"model": self.model.names[0], "input": QUESTION, "tools": [MCP], "stream": True} | fields
        if previous := body.get("previous_response_id"):
            await self.store.prepare_read("", previous)
        history = StoredHistory(self.store, "", self.manager.sealer or PlainSealer())
        parsed = await asyncio.to_thread(responses_request.read_responses_request, body, self.registry, history)
        origin = make_origin("responses", body)
        self.log = await self.manager.start_turn(parsed.model, parsed.spec, "", origin)
        return self.log

    @property
    def core(self) -> TurnCore:
        """The core of the turn that runs."""
        assert self.log is not None
        return self.manager._running[self.log.id].core

    @property
    def event_types(self) -> list[str]:
        """The types of the events so far."""
        assert self.log is not None
        return [json.loads(entry.data)["type"].removeprefix("response.") for entry in self.log.entries]

    async def wait_until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(HANG_TIMEOUT_S):
            while not condition():
                await asyncio.sleep(0.001)

    async def wait_for(self, *kinds: str) -> None:
        """Waits until the events of these types have come, in this order."""
        await self.wait_until(lambda: contains_in_order(self.event_types, kinds))

    async def wait_called(self) -> None:
        """Waits until a tool runs."""
        await self.wait_until(lambda: self.servers.calls)

    async def wait_second_round(self) -> None:
        """Waits until the engine has the job of the second round."""
        await self.wait_until(lambda: len(self.jobs) == 2)

    async def wait_engine(self) -> None:
        """Waits until the engine has no job."""
        await self.wait_until(lambda: not self.model.engine.stats().running)

    def read_prompts(self) -> list[str]:
        """Returns the prompts of all jobs as text."""
        return [self.model.format.decode(job.tokens) for job in self.jobs]


def contains_in_order(types: Sequence[str], kinds: Sequence[str]) -> bool:
    """Tells whether `kinds` are among the types, in this order."""
    left = iter(types)
    return all(kind in left for kind in kinds)


def _build_registry(case: ToolCase) -> ModelRegistry:
    model_format = load_case_format(case.dialect)
    info = EngineInfo(
        max_model_len=case.max_model_len, vocab_size=262_144, device="none", eos_ids=model_format.stop_ids[:1]
    )
    return scripted_registry(_build_script(case), model_format=model_format, info=info)


def _build_script(case: ToolCase) -> list[dict[str, Any]]:
    """Returns the replies, those of later rounds first: their prompts contain the texts of the earlier ones."""
    rounds = [*(case.earlier.rounds if case.earlier else ()), *case.rounds]
    return [
        {
            "name": f"round {number}",
            "when": list(each.when),
            "output": list(each.output),
            "finish": each.finish,
            "tokens_per_chunk": case.step,
            "cached_tokens": each.cached_tokens,
        }
        for number, each in reversed(list(enumerate(rounds)))
    ]


@dataclass(frozen=True)
class ToolCaseResult:
    """The result of one case."""

    run: ToolRun
    frames: bytes
    error: ApiError | None = None
    num_earlier_jobs: int = 0
    num_earlier_calls: int = 0

    @property
    def events(self) -> list[dict[str, Any]]:
        """The data of every frame, without the end mark."""
        lines = [line.removeprefix("data: ") for line in self.frames.decode().split("\n") if line.startswith("data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"]

    @property
    def response(self) -> dict[str, Any]:
        """The response in its last event."""
        response: dict[str, Any] = self.events[-1]["response"]
        return response


@asynccontextmanager
async def open_run(
    case: ToolCase, registry: ModelRegistry | None = None, recorder: TurnRecorder | None = None
) -> AsyncIterator[ToolRun]:
    """Opens the server of a case, and closes it at the end. `registry`: a model that does not play the case."""
    async with AsyncExitStack() as stack:
        faults: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        store = MemoryStore()
        stack.push_async_callback(store.close)
        run = ToolRun(case, store, registry, recorder)
        stack.push_async_callback(run.manager.drain, 0)
        yield run
    assert not faults, "callbacks of the event loop have failed"


async def run_tool_case(case: ToolCase, recorder: TurnRecorder | None = None) -> ToolCaseResult:
    """Runs a case through `/v1/responses`."""
    async with open_run(case, recorder=recorder) as run:
        fields: dict[str, Any] = dict(case.request)
        num_jobs = num_calls = 0
        if case.earlier is not None:
            log = await run.start_turn(**case.earlier.request)
            await log.wait_finished()
            await log.wait_published()
            fields |= case.follow(json.loads(await responses.final_response(log)))
            num_jobs, num_calls = len(run.jobs), len(run.servers.calls)
        try:
            log = await run.start_turn(**fields)
        except ApiError as error:
            return ToolCaseResult(run, b"", error, num_jobs, num_calls)
        acting = asyncio.create_task(case.act(run)) if case.act else None
        async with asyncio.timeout(HANG_TIMEOUT_S):
            frames = await collect_frames(responses.ResponsesStream(log))
            if acting is not None:
                await acting
            while run.manager.num_running:
                await asyncio.sleep(0)
        stats = run.model.engine.stats()
        assert (stats.running, stats.waiting) == (0, 0)
        return ToolCaseResult(run, frames, None, num_jobs, num_calls)
