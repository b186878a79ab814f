"""One try to run a job on one replica."""

import asyncio
import base64
import contextlib
import hashlib
import logging
from typing import Any

import msgspec

from antiphon.engine.protocol import EngineError, Job
from antiphon.engine.remote.backend_apis.base import BackendApi, GrammarSyntax, JobTarget, read_error_body
from antiphon.engine.remote.faults import (
    REFUSED_GRAMMAR,
    FailedAttempt,
    classify_failure,
    is_about_grammar,
    lost_attempt,
    refuse_media,
)
from antiphon.engine.remote.grammars.continuation_mask import GrammarMode, mask_next_token
from antiphon.engine.remote.grammars.follower import PreparedGrammar
from antiphon.engine.remote.handshakes.handshake import ServerProfile
from antiphon.engine.remote.job_stream import JobStream, StreamStart
from antiphon.engine.remote.options import RemoteSetup
from antiphon.engine.remote.remote_job import (
    RemoteJob,
    continue_job,
    continue_texts,
    count_prompt_tokens,
    end_with_grammar,
    find_uncounted,
)
from antiphon.engine.remote.replica import Replica
from antiphon.engine.remote.transport.connection import ConnectError, HttpResponse, RemoteConnectionError

log = logging.getLogger(__name__)

MIN_REPLY_BYTES = 1 << 20
BYTES_PER_LOGPROB = 200
"""Bytes of one candidate for a token of the prompt, with room: its id, its text, its log-probability and its rank."""


class _Request(msgspec.Struct, frozen=True):
    """One request of a job: the job as the server gets it, and the reader of the reply."""

    job: Job
    api: BackendApi
    target: JobTarget
    stream: JobStream


class AttemptRunner:
    """Runs jobs on replicas, one try at a time."""

    def __init__(self, setup: RemoteSetup) -> None:
        self._setup = setup

    async def run_attempt(self, run: RemoteJob, replica: Replica, headers: dict[str, str]) -> FailedAttempt | None:
        """Runs the job until its last chunk. Returns the failure that ended the try before."""
        replica.stats.attempts += 1
        run.replica, run.num_attempts = replica.name, run.num_attempts + 1
        headers = {**headers, **dict(run.job.trace_headers)}
        mode: GrammarMode = "checked" if run.generated else "followed"
        while not run.is_over:
            profile = replica.profile
            if profile is None:
                return lost_attempt(replica.name, replica.unready_reason or "it is down", has_job=False)
            request_id = run.create_request_id()
            request = await self._prepare_request(run, profile, mode, request_id)
            if request is None:
                run.finish_without_tokens()
                return None
            failed = await self._run_request(request, replica, {**headers, "X-Request-Id": request_id})
            if failed is not None:
                return failed
            mode = "masked" if mode == "checked" else "checked"
        return None

    async def _prepare_request(
        self, run: RemoteJob, profile: ServerProfile, mode: GrammarMode, request_id: str
    ) -> "_Request | None":
        """Returns the next request of a job, which begins after all its tokens; None if none is left to generate."""
        api = profile.api if run.job.sampling.top_logprobs is None else profile.logprobs_api
        target, job = self._build_target(run, profile), continue_job(run.job, run.generated, request_id)
        if run.generated and target.max_tokens <= 0:
            return None
        num_left, follower = target.max_tokens, None
        run.uncounted = find_uncounted(run.job, api)
        if run.generated and run.uncounted and self._setup.options.continuation == "strict":
            message = f"the engine cannot go on exactly after tokens that were generated before: {run.uncounted[0]}"
            raise EngineError("engine_unavailable", message, retryable=True)
        if job.media:
            job, api, target = self._add_pictures(run, profile, job, target)
        if job.grammar is not None:
            prepared = await self._prepare_grammar(job.grammar, api.grammar_syntax)
            follower = prepared.continue_follower(target.stop_ids, run.generated)
            if mode == "followed":
                target = prepared.apply_to(target)
            elif mode == "masked":
                allowed = follower.list_allowed(may_end=not job.sampling.min_tokens)
                target = mask_next_token(target, allowed, api.grammar_syntax, self._setup.model.vocab_size)
            job = end_with_grammar(job, is_masked=mode == "masked")
        start = StreamStart(
            is_admitted=run.is_admitted,
            num_generated=len(run.generated),
            counts_cached=not run.num_tokens and mode != "masked",
            grammar_mode=mode,
            num_left=num_left,
        )
        stream = JobStream(
            job,
            run.receive_chunk,
            target=target,
            vocab_size=self._setup.model.vocab_size,
            decode=api.create_decoder(job),
            follower=follower,
            start=start,
        )
        return _Request(job, api, target, stream)

    async def _run_request(
        self, request: "_Request", replica: Replica, headers: dict[str, str]
    ) -> FailedAttempt | None:
        """Sends a request and reads its reply. The replica counts the job as running from the first token on."""
        stream, stats = request.stream, replica.stats
        stats.waiting += 1

        def count_running() -> None:
            stats.waiting -= 1
            stats.running += 1

        stream.on_first_token = count_running
        try:
            return await self._run_stream(request, replica, headers)
        finally:
            if stream.num_tokens:
                stats.running -= 1
            else:
                stats.waiting -= 1

    def _add_pictures(
        self, run: RemoteJob, profile: ServerProfile, job: Job, target: JobTarget
    ) -> tuple[Job, BackendApi, JobTarget]:
        """Returns the job as this server takes it, its interface, and the target with the pictures."""
        images = profile.images
        if images.api is None:
            raise EngineError("invalid_request", f"the engine takes no images: {images.refusal}")
        if images.marker and any(images.marker in text for text in job.texts):
            raise EngineError("invalid_request", "the text contains what stands for images on the engine")
        start = self._setup.model.added_tokens.get(job.tokens[0], "") if images.adds_start and job.tokens else ""
        if start and job.texts:
            job = msgspec.structs.replace(job, texts=(job.texts[0].removeprefix(start), *job.texts[1:]))
        if run.generated and images.api.image_form == "text":
            job = continue_texts(job, run.generated, self._setup.model.vocabulary)
        return job, images.api, msgspec.structs.replace(target, pictures=run.pictures, media_marker=images.marker)

    async def _run_stream(
        self,
        request: "_Request",
        replica: Replica,
        headers: dict[str, str],
    ) -> FailedAttempt | None:
        job, api, target, stream = request.job, request.api, request.target, request.stream
        client, sink = replica.client, stream if job.prompt_logprobs is None else None
        body, limit = api.encode_job(job, target), max_reply_bytes(job)
        exchange = asyncio.ensure_future(client.request("POST", api.path, body, headers, sink, limit))
        lost: RemoteConnectionError | None = None
        try:
            response = await self._wait_for_end(exchange, stream)
        except RemoteConnectionError as error:
            response, lost = None, error
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
                lost_attempt(replica.name, str(lost), has_job=not isinstance(lost, ConnectError))
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

    def _build_target(self, run: RemoteJob, profile: ServerProfile) -> JobTarget:
        job, sampling = run.job, run.job.sampling
        room = profile.max_model_len - count_prompt_tokens(job)
        ignores_eos = sampling.ignore_eos and job.grammar is None
        eos_ids = () if ignores_eos else self._setup.model.eos_ids
        salt = ""
        if job.cache_salt or self._setup.options.separate_owners:
            digest = hashlib.sha256(f"{job.owner}\0{job.cache_salt}".encode()).digest()
            salt = base64.urlsafe_b64encode(digest).decode()  # vLLM refuses slashes
        return JobTarget(
            model=profile.model,
            max_tokens=(room if sampling.max_tokens is None else min(sampling.max_tokens, room)) - len(run.generated),
            stop_ids=tuple(dict.fromkeys((*sampling.stop_ids, *eos_ids))),
            cache_salt=salt,
            max_prompt_tokens=profile.max_model_len,
        )


def max_reply_bytes(job: Job) -> int:
    """Returns the maximum size of a reply that is not streamed: that of a job with prompt log-probabilities."""
    return MIN_REPLY_BYTES + len(job.tokens) * ((job.prompt_logprobs or 0) + 2) * BYTES_PER_LOGPROB


async def _read_whole_reply(stream: JobStream, body: bytes) -> None:
    """Reads a reply that was not streamed, a part in each pass of the event loop."""
    is_enough = stream.on_payload(body)
    while stream.has_backlog and not is_enough:
        await asyncio.sleep(0)
        is_enough = stream.process_backlog()
