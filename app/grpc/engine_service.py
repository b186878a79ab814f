"""The token-level engine service: a router that speaks to vLLM's engines can use this server as a worker.

A request becomes the turns of a text completion, and its messages are readings of their logs. So the slots, the limits,
the grammars and the counts are those of every other request.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import grpc
import msgspec
import structlog

from antiphon.app.context import ServerContext
from antiphon.app.errors import ApiError, internal_error, not_found, report_engine_errors
from antiphon.app.grpc.descriptors import COMMON_PACKAGE, ENGINE_PACKAGE, ENGINE_SERVICE, message_class
from antiphon.app.grpc.engine_replies import ChoiceReply, engine_message
from antiphon.app.grpc.engine_requests import completion_body, decode_message
from antiphon.app.grpc.statuses import (
    CLIENT_GONE,
    CallLostError,
    abort_call,
    hold_time_limit,
    send_metadata,
    status_code,
    time_limit,
    write_message,
)
from antiphon.app.grpc.tokenizer_bundle import build_tokenizer_bundle, split_bundle
from antiphon.app.http.headers import choose_request_id
from antiphon.app.http.middleware import RequestGuard
from antiphon.app.models.status import known_info
from antiphon.app.options.api_keys import NO_KEY, ApiKey
from antiphon.app.registry.model_registry import ServedModel
from antiphon.app.requests.completions.request import CompletionRequest, read_completion_request
from antiphon.app.route_helpers.engine_ready import unready_reason
from antiphon.app.route_helpers.http_replies import cancel_started, count_readers
from antiphon.app.turn_types.access_record import AccessRecord
from antiphon.app.turn_types.event_log import EventLog
from antiphon.app.turn_types.tracing.context import RequestTrace
from antiphon.app.turn_types.turn_stats import TurnOrigin
from antiphon.engine.protocol import EngineInfo

SERVER_TYPE = "vllm-grpc"
"""Name of this interface, by which routers recognize it."""
OPEN_METHODS = ("HealthCheck",)
"""Methods that need no key, like `/health` over HTTP."""
_call_trace: ContextVar[RequestTrace | None] = ContextVar("call_trace", default=None)
"""Span of the call that a task handles; None if nothing is traced."""
_log = structlog.get_logger(__name__)


class _RunningCall:
    """A call of `Generate`: its turns, once they have started, and whether it was aborted."""

    def __init__(self) -> None:
        self.starting: asyncio.Task[list[EventLog]] | None = None
        self.logs: list[EventLog] = []
        self.aborted = False


class EngineService:
    """The service's methods for one model: no message of this interface names one, so a worker has a single model.

    `guard` checks the key of a call, and records a generation like a request.
    """

    def __init__(self, context: ServerContext, guard: RequestGuard, model: ServedModel) -> None:
        self._context, self._guard, self._model = context, guard, model
        self._stall_timeout_s = context.settings.stall_timeout
        self._calls: dict[tuple[str, str], _RunningCall] = {}
        self._started_at, self._received_at = time.monotonic(), 0.0
        unary = {
            "Abort": self._abort,
            "HealthCheck": self._report_health,
            "GetModelInfo": self._get_model_info,
            "GetServerInfo": self._get_server_info,
            "GetLoads": self._get_loads,
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(self._build_handler(name, run)) for name, run in unary.items()
        }
        for name, run in {"Generate": self._generate, "GetTokenizer": self._get_tokenizer}.items():
            handlers[name] = grpc.unary_stream_rpc_method_handler(self._build_handler(name, run))
        self.generic_handler = grpc.method_handlers_generic_handler(ENGINE_SERVICE, handlers)
        """Handler of the service's calls."""

    def _build_handler(
        self, name: str, run: Callable[[Any, ApiKey, grpc.aio.ServicerContext], Awaitable[Any]]
    ) -> Callable[[bytes, grpc.aio.ServicerContext], Awaitable[Any]]:
        """Returns the handler of a method: checks the key, decodes the message, and turns errors into statuses."""
        package = COMMON_PACKAGE if name == "GetTokenizer" else ENGINE_PACKAGE
        kind = message_class(f"{name}Request", package)

        async def handle(data: bytes, context: grpc.aio.ServicerContext) -> Any:
            headers = {key: str(value) for key, value in context.invocation_metadata() or ()}
            request_id, started = choose_request_id(headers), time.monotonic()
            tracer = self._context.tracer
            trace = tracer.begin_request(headers) if tracer is not None and name == "Generate" else None
            _call_trace.set(trace)
            failure: ApiError | None = CLIENT_GONE  # unless one of the lines below is reached
            api_key = NO_KEY
            try:
                if name not in OPEN_METHODS:
                    api_key = self._authorize(headers)
                reply = await run(decode_message(kind, data), api_key, context)
                failure = None
            except ApiError as error:
                failure = error
            except CallLostError:
                pass
            except Exception:  # noqa: BLE001  # gRPC would send the exception's text to the client
                _log.exception("unhandled exception in gRPC call", method=name, request_id=request_id)
                failure = internal_error()
            finally:
                if name == "Generate":
                    record = _build_record(name, failure, started, request_id, trace)
                    self._guard.record_request(record, api_key)
            if failure is not None:
                await abort_call(context, failure)
                return None
            return None if reply is None else reply.SerializeToString()

        return handle

    def _authorize(self, headers: dict[str, str]) -> ApiKey:
        """Returns the API key of a call. Raises `ApiError`, also if the key may not use the model."""
        api_key = self._guard.authenticate(headers)
        if api_key.models is not None and api_key.models.isdisjoint(self._model.names):
            self._context.models.restrict(api_key.models).find_model(self._model.names[0])
        return api_key

    async def _get_info(self) -> EngineInfo:
        """Returns the model's properties; loads a model for it that has never been loaded. Raises `ApiError`."""
        engine = self._model.engine
        if known_info(self._model) is None:
            with report_engine_errors():
                await engine.wait_ready()
        return engine.info

    async def _generate(self, request: Any, api_key: ApiKey, context: grpc.aio.ServicerContext) -> None:
        self._received_at = time.time()
        model = self._model
        await self._context.turn_manager.make_room(model.engine)
        self._context.capacity.check(model.engine)
        self._context.meter.count_request(api_key)
        with report_engine_errors():
            await model.engine.wait_ready()
        parsed = read_completion_request(completion_body(request, model), self._context.models)
        key, call = (api_key.owner, request.request_id), _RunningCall()
        self._calls[key] = call
        try:
            with hold_time_limit(limit := time_limit(context)):
                await self._start_turns(call, parsed, api_key, limit)
                with count_readers(self._context, call.logs):
                    await send_metadata(context, self._stall_timeout_s)
                    async for message in _read_replies(call, parsed, stream=request.stream):
                        await write_message(context, message.SerializeToString(), self._stall_timeout_s)
        finally:
            if self._calls.get(key) is call:
                del self._calls[key]

    async def _start_turns(
        self, call: _RunningCall, parsed: CompletionRequest, api_key: ApiKey, deadline: float | None
    ) -> None:
        """Starts the turns. Leaves `call.logs` empty if the call is aborted meanwhile."""
        specs = [msgspec.structs.replace(spec, time_limit=deadline) for spec in parsed.specs]
        origin = TurnOrigin(api="completions", arrived=time.monotonic(), key=api_key, trace=_call_trace.get())
        starting = self._context.turn_manager.start_prompts(parsed.model, specs, api_key.owner, origin=origin)
        call.starting = asyncio.create_task(starting)
        try:
            call.logs = await call.starting
        except asyncio.CancelledError:
            cancel_started(self._context, call.starting)
            if not call.aborted:
                raise
        if call.aborted:  # when the turns had started, but this task had not noticed yet
            self._cancel_turns(call)

    def _cancel_turns(self, call: _RunningCall) -> None:
        for log in call.logs:
            self._context.turn_manager.cancel_turn(log.id)

    async def _abort(self, request: Any, api_key: ApiKey, _: grpc.aio.ServicerContext) -> Any:
        for request_id in request.request_ids:
            call = self._calls.get((api_key.owner, request_id))
            if call is None:
                continue
            call.aborted = True
            if not call.logs and call.starting is not None:
                call.starting.cancel()
            self._cancel_turns(call)
        return engine_message("AbortResponse")

    async def _report_health(self, *_: Any) -> Any:
        reason = unready_reason(self._context, self._model)
        return engine_message("HealthCheckResponse", healthy=reason is None, message=reason or "ready")

    async def _get_model_info(self, *_: Any) -> Any:
        model = self._model
        info = await self._get_info()
        sampling = info.default_sampling
        defaults = {name: getattr(sampling, name) for name in ("temperature", "top_p", "top_k", "min_p")}
        return engine_message(
            "GetModelInfoResponse",
            model_path=model.names[0],
            is_generation=True,
            max_context_length=info.max_model_len,
            vocab_size=info.vocab_size,
            served_model_name=model.names[0],
            model_type=info.architecture,
            eos_token_ids=info.eos_ids,
            max_req_input_len=info.max_model_len,
            default_sampling_params_json=msgspec.json.encode(defaults).decode(),
        )

    async def _get_server_info(self, *_: Any) -> Any:
        stats = self._model.engine.stats()
        return engine_message(
            "GetServerInfoResponse",
            active_requests=self._context.capacity.open_turns(self._model.engine),
            last_receive_timestamp=self._received_at,
            uptime_seconds=time.monotonic() - self._started_at,
            server_type=SERVER_TYPE,
            data_parallel_size=1,
            model_dtype=(await self._get_info()).dtype,
            max_num_seqs=stats.max_num_seqs,
            constrained_decoding_start="first_token",
        )

    async def _get_loads(self, *_: Any) -> Any:
        stats = self._model.engine.stats()
        load = engine_message(
            "SchedulerLoad",
            num_running_reqs=stats.running,
            num_waiting_reqs=stats.waiting,
            num_total_reqs=stats.running + stats.waiting,
            num_used_tokens=stats.running_cache_tokens,
            max_running_requests=stats.max_num_seqs,
        )
        now = datetime.now(UTC).isoformat()
        return engine_message(
            "GetLoadsResponse", timestamp=now, version=version("antiphon"), dp_rank_count=1, loads=[load]
        )

    async def _get_tokenizer(self, _: Any, __: ApiKey, context: grpc.aio.ServicerContext) -> None:
        folder = self._model.folder
        if folder is None:
            raise not_found("This model has no tokenizer files.")
        part_class = message_class("GetTokenizerChunk", COMMON_PACKAGE)
        parts = split_bundle(await asyncio.to_thread(build_tokenizer_bundle, folder))
        await send_metadata(context, self._stall_timeout_s)
        for data, digest in parts:
            part: Any = part_class()
            part.data, part.sha256 = data, digest
            await write_message(context, part.SerializeToString(), self._stall_timeout_s)


def _build_record(
    name: str, failure: ApiError | None, started: float, request_id: str, trace: RequestTrace | None
) -> AccessRecord:
    """Returns the access log's line of a call that ends now. gRPC calls are POST requests of HTTP/2 to this path."""
    now = time.monotonic()
    status, code = (200, "") if failure is None else (failure.status, failure.code or "")
    path = f"/{ENGINE_SERVICE}/{name}"
    return AccessRecord(
        *("POST", path, status, now - started, request_id, code),
        trace=trace,
        rpc_method=path.removeprefix("/"),
        ended=now,
        rpc_status="OK" if failure is None else status_code(failure.status, failure.code).name,
    )


async def _read_replies(call: _RunningCall, parsed: CompletionRequest, *, stream: bool) -> AsyncIterator[Any]:
    """Yields the messages of all choices as their logs grow."""
    options = parsed.form
    choices = [
        ChoiceReply(index, num_top=options.logprobs, prompt_top=options.prompt_logprobs, stop_ids=options.stop_ids)
        for index in range(options.n)
    ]
    if not call.logs:  # aborted before the start
        for choice in choices:
            yield choice.build_complete()
        return
    woken = asyncio.Event()
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(log.open_reader(0, woken.set)) for log in call.logs]
        while True:
            woken.clear()
            for choice, reader in zip(choices, readers, strict=True):
                while reader.has_entries:
                    choice.add_entries(reader.take_entries())
                    if stream and (chunk := choice.build_chunk()) is not None:
                        yield chunk
                    if choice.has_ended:
                        yield choice.build_complete()
            if all(choice.has_ended for choice in choices):
                return
            await woken.wait()
