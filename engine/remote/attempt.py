"""One job in flight, and one try to run it on one replica."""

import asyncio
import base64
import contextlib
import hashlib
import logging
from typing import Any, Literal

import msgspec

from antiphon.engine.protocol import CANCELLED_WHILE_WAITING, Chunk, EngineError, Fault, Job, OnChunk
from antiphon.engine.remote.backend_apis.base import BackendApi, GrammarSyntax, JobTarget, read_error_body
from antiphon.engine.remote.faults import (
    REFUSED_GRAMMAR,
    FailedAttempt,
    classify_failure,
    is_about_grammar,
    lost_attempt,
    refuse_media,
)
from antiphon.engine.remote.grammars.follower import PreparedGrammar
from antiphon.engine.remote.handshake import ServerProfile
from antiphon.engine.remote.images.pictures import RemotePicture
from antiphon.engine.remote.job_stream import JobStream
from antiphon.engine.remote.options import RemoteSetup
from antiphon.engine.remote.replica import Replica
from antiphon.engine.remote.transport.connection import HttpResponse, RemoteConnectionError

log = logging.getLogger(__name__)

EndCause = Literal["deadline", "cancelled", "closed"]
STOPPED_FAULT = Fault("engine_unavailable", "the engine was stopped", retryable=True)


MIN_REPLY_BYTES = 1 << 20
BYTES_PER_LOGPROB = 200
"""Bytes of one candidate for a token of the prompt, with room: its id, its text, its log-probability and its rank."""


class RemoteJob:
    """A job in flight. `scope` is the timeout in which it runs: `end` ends it like a deadline."""

    def __init__(self, job: Job, on_chunk: OnChunk) -> None:
        loop = asyncio.get_running_loop()
        self.job = job
        self.scope = asyncio.timeout_at(None if job.deadline is None else loop.time() + job.deadline)
        self.finished: asyncio.Future[None] = loop.create_future()
        self.is_admitted = self.is_over = False
        self.num_tokens = self.cached_tokens = 0
        self.has_failed = False
        self.pictures: tuple[RemotePicture, ...] = ()
        self._on_chunk = on_chunk
        self._cause: EndCause = "deadline"

    def receive_chunk(self, chunk: Chunk) -> None:
        """Passes a chunk to the caller."""
        self.is_admitted = True
        self.num_tokens += len(chunk.tokens)
        self.cached_tokens = max(self.cached_tokens, chunk.cached_tokens)
        if chunk.finish is not None:
            self.is_over, self.has_failed = True, chunk.fault is not None
        self._on_chunk(chunk)

    def end(self, cause: EndCause) -> None:
        """Ends the job from outside its task."""
        self._cause = cause
        self.scope.reschedule(asyncio.get_running_loop().time())

    def report_end(self) -> None:
        """Reports the end by `end` or by the deadline: as the last chunk, or as an error before the admission."""
        if self.is_over:
            return
        if self._cause == "cancelled" and self.is_admitted:
            self.receive_chunk(Chunk(finish="cancelled"))
        elif self._cause == "cancelled":
            raise EngineError.from_fault(CANCELLED_WHILE_WAITING)
        elif self._cause == "closed":
            self.fail(STOPPED_FAULT)
        else:
            self.fail(Fault("deadline_exceeded", f"not done within {self.job.deadline:g} s", retryable=True))

    def fail(self, fault: Fault) -> None:
        """Ends the job with a fault, or raises it as an error before the admission."""
        if not self.is_admitted:
            raise EngineError.from_fault(fault)
        self.receive_chunk(Chunk(finish="error", fault=fault))


class AttemptRunner:
    """Runs jobs on replicas, one try at a time."""

    def __init__(self, setup: RemoteSetup) -> None:
        self._setup = setup

    async def run_attempt(self, run: RemoteJob, replica: Replica, headers: dict[str, str]) -> FailedAttempt | None:
        """Runs the job until its last chunk. Returns the failure of a try that got no token."""
        profile = replica.profile
        if profile is None:
            return lost_attempt(replica.name, replica.unready_reason or "it is down")
        replica.stats.attempts += 1
        replica.stats.waiting += 1
        stream: JobStream | None = None

        def count_running() -> None:
            replica.stats.waiting -= 1
            replica.stats.running += 1

        try:
            job, api = run.job, profile.api if run.job.sampling.top_logprobs is None else profile.logprobs_api
            target, follower = self._build_target(job, profile), None
            if job.media:
                job, api, target = self._add_pictures(run, profile, target)
            if run.job.grammar is not None:
                prepared = await self._prepare_grammar(run.job.grammar, api.grammar_syntax)
                target, follower = prepared.apply_to(target), prepared.create_follower(target.stop_ids)
            stream = JobStream(
                job,
                run.receive_chunk,
                target=target,
                vocab_size=self._setup.model.vocab_size,
                decode=api.create_decoder(job),
                follower=follower,
                is_admitted=run.is_admitted,
                on_first_token=count_running,
            )
            return await self._run_stream(job, stream, target, replica, api, headers)
        finally:
            if stream is not None and stream.num_tokens:
                replica.stats.running -= 1
            else:
                replica.stats.waiting -= 1

    def _add_pictures(
        self, run: RemoteJob, profile: ServerProfile, target: JobTarget
    ) -> tuple[Job, BackendApi, JobTarget]:
        """Returns the job as this server takes it, its interface, and the target with the pictures."""
        job, images = run.job, profile.images
        if images.api is None:
            raise EngineError("invalid_request", f"the engine takes no images: {images.refusal}")
        if images.marker and any(images.marker in text for text in job.texts):
            raise EngineError("invalid_request", "the text contains what stands for images on the engine")
        start = self._setup.model.added_tokens.get(job.tokens[0], "") if images.adds_start and job.tokens else ""
        if start and job.texts:
            job = msgspec.structs.replace(job, texts=(job.texts[0].removeprefix(start), *job.texts[1:]))
        return job, images.api, msgspec.structs.replace(target, pictures=run.pictures, media_marker=images.marker)

    async def _run_stream(
        self,
        job: Job,
        stream: JobStream,
        target: JobTarget,
        replica: Replica,
        api: BackendApi,
        headers: dict[str, str],
    ) -> FailedAttempt | None:
        client, sink = replica.client, stream if job.prompt_logprobs is None else None
        body, limit = api.encode_job(job, target), max_reply_bytes(job)
        request = asyncio.ensure_future(client.request("POST", api.path, body, headers, sink, limit))
        lost: str | None = None
        try:
            response = await self._wait_for_end(request, stream)
        except RemoteConnectionError as error:
            response, lost = None, str(error)
        if response is not None and response.status != 200:
            attempt = classify_failure(read_error_body(response.status, response.body), replica.name, client.secrets)
        else:
            if response is not None and sink is None:
                await _read_whole_reply(stream, response.body)
            stream.finish_reply()
            if stream.has_left_grammar:
                replica.stats.grammar_departures += 1
                if api.grammar_syntax == "gbnf":  # llama.cpp takes some bytes that are not UTF-8 for characters
                    log.warning("engine %s left the grammar of a job", replica.name)
                else:
                    replica.request_handshake("left the grammar of a job; its grammars are probed again")
            if stream.failure is None:
                return None
            attempt = (
                lost_attempt(replica.name, lost)
                if lost is not None
                else classify_failure(stream.failure, replica.name, client.secrets)
            )
        if job.media and (refused := refuse_media(attempt)) is not attempt:
            log.warning("engine %s refused an image", replica.name)
            attempt = refused
        if target.grammar is not None and is_about_grammar(attempt, target.grammar):
            log.warning("engine %s refused a grammar: %s", replica.name, attempt.error.message)
            attempt = REFUSED_GRAMMAR
        replica.stats.failures += attempt.is_retryable
        if attempt.is_down:
            replica.request_handshake(attempt.error.message)
        return None if stream.is_over else attempt

    async def _wait_for_end(self, request: "asyncio.Future[HttpResponse]", stream: JobStream) -> HttpResponse | None:
        """Returns the response, or None if the server did not end it in time after the last token."""
        try:
            ends: set[asyncio.Future[Any]] = {request, stream.finishing}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not request.done():
                await asyncio.wait({request}, timeout=self._setup.timeouts.final_count_grace_s)
            return request.result() if request.done() else None
        finally:
            if not request.done():
                request.cancel()
                with contextlib.suppress(asyncio.CancelledError, RemoteConnectionError):
                    await request

    async def _prepare_grammar(self, grammar: str, syntax: GrammarSyntax) -> PreparedGrammar:
        if self._setup.followers is None:
            raise EngineError("grammar_unsupported", "grammars need the tokenizer.json of the model")
        return await self._setup.followers.prepare_grammar(grammar, syntax)

    def _build_target(self, job: Job, profile: ServerProfile) -> JobTarget:
        room = profile.max_model_len - count_prompt_tokens(job)
        sampling = job.sampling
        eos_ids = () if sampling.ignore_eos else self._setup.model.eos_ids
        salt = ""
        if job.cache_salt or self._setup.options.separate_owners:
            digest = hashlib.sha256(f"{job.owner}\0{job.cache_salt}".encode()).digest()
            salt = base64.urlsafe_b64encode(digest).decode()  # vLLM refuses slashes
        return JobTarget(
            model=profile.model,
            max_tokens=room if sampling.max_tokens is None else min(sampling.max_tokens, room),
            stop_ids=tuple(dict.fromkeys((*sampling.stop_ids, *eos_ids))),
            cache_salt=salt,
            max_prompt_tokens=profile.max_model_len,
        )


def count_prompt_tokens(job: Job) -> int:
    """Returns the length of a prompt with the rows of pictures that the server puts into it, as far as known."""
    return len(job.tokens) + sum(max(span.rows - span.length, 0) for span in job.media)


def max_reply_bytes(job: Job) -> int:
    """Returns the maximum size of a reply that is not streamed: that of a job with prompt log-probabilities."""
    return MIN_REPLY_BYTES + len(job.tokens) * ((job.prompt_logprobs or 0) + 2) * BYTES_PER_LOGPROB


async def _read_whole_reply(stream: JobStream, body: bytes) -> None:
    """Reads a reply that was not streamed, a part in each pass of the event loop."""
    is_enough = stream.on_payload(body)
    while stream.has_backlog and not is_enough:
        await asyncio.sleep(0)
        is_enough = stream.process_backlog()
