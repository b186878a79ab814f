"""The engine over remote servers: admission, choice of a replica, retries and counts."""

import asyncio
import contextlib
import functools
import logging
import secrets
from collections.abc import Callable, Sequence

import msgspec

from antiphon.engine.errors import LoadError
from antiphon.engine.protocol import (
    Capabilities,
    EngineError,
    EngineInfo,
    EngineStats,
    Fault,
    Job,
    MediaSource,
    OnChunk,
    is_full,
    overloaded_error,
)
from antiphon.engine.remote.attempt import AttemptRunner
from antiphon.engine.remote.child_server import ChildServer
from antiphon.engine.remote.faults import STREAM_BROKEN
from antiphon.engine.remote.grammars.follower import GrammarFollowers
from antiphon.engine.remote.images.image_handshake import common_images
from antiphon.engine.remote.images.pictures import load_pictures
from antiphon.engine.remote.options import RemoteModel, RemoteOptions, RemoteSetup, RemoteTimeouts
from antiphon.engine.remote.remote_job import STOPPED_FAULT, RemoteJob, RetrySchedule, check_job
from antiphon.engine.remote.replica import Replica
from antiphon.engine.remote.selection import affinity_of_prompt, choose_replica

log = logging.getLogger(__name__)

NOT_RUNNING = "the engine is not running"


class RemoteEngine:
    """Runs jobs on the servers of `options`.

    `info` is the model's description here; its context length and capabilities are replaced by what all replicas
    have in common. `api_key` authorizes requests to the servers. `on_status` is called with a short text at every step
    of a handshake, and with "ready". `child`: the server, if this process runs it.
    """

    def __init__(
        self,
        options: RemoteOptions,
        model: RemoteModel,
        info: EngineInfo,
        *,
        api_key: str | None = None,
        timeouts: RemoteTimeouts | None = None,
        on_status: Callable[[str], None] = lambda _: None,
        child: ChildServer | None = None,
    ) -> None:
        self.child = child
        if child is not None:
            child.on_exit = self._on_child_exit
        self._options, self._base_info, self._on_status = options, info, on_status
        self._timeouts = timeouts or RemoteTimeouts()
        self._api_key, self._shown_status = api_key, ""
        followers: GrammarFollowers | None = None
        if model.tokenizer_file is not None and options.grammar != "off":
            followers = GrammarFollowers(
                model.tokenizer_file, model.vocab_size, model.eos_ids, model.relax_grammar, model.added_tokens
            )
        self.setup = RemoteSetup(options, model, followers, self._timeouts)
        self._runner = AttemptRunner(self.setup)
        self._replicas: tuple[Replica, ...] = ()
        self._monitors: list[asyncio.Task[None]] = []
        self._info: EngineInfo | None = None
        self._jobs: dict[str, RemoteJob] = {}
        self._media: MediaSource | None = None
        self._media_secret = secrets.token_bytes(32)
        self._changed = asyncio.Event()
        self._prompt_tokens = self._hit_tokens = self._generated_tokens = 0
        self._finished_jobs = self._failed_jobs = 0

    @property
    def info(self) -> EngineInfo:
        """Properties of the model. Raises `engine_unavailable` before the first successful handshake."""
        if self._info is None:
            raise EngineError("engine_unavailable", self.unready_reason() or NOT_RUNNING, retryable=True)
        return self._info

    @property
    def replicas(self) -> Sequence[Replica]:
        """The servers, for metrics."""
        return self._replicas

    def attach_media(self, source: MediaSource) -> None:
        """Sets the source of the pictures of jobs."""
        self._media, self._media_secret = source, source.secret or self._media_secret

    async def start(self) -> None:
        """Returns as soon as one replica can take jobs. Raises `LoadError` if none of them fits the model here."""
        if self._monitors:
            return
        if self.child is not None:
            self.child.start()
        self._replicas = tuple(
            Replica(endpoint, self.setup, api_key=self._api_key, on_change=self._on_change)
            for endpoint in self._options.endpoints
        )
        self._monitors = [
            asyncio.create_task(replica.run_monitor(), name=f"engine-{replica.name}") for replica in self._replicas
        ]
        while self.unready_reason() is not None:
            if (failure := self._find_failure()) is not None:
                await self.close()
                raise LoadError(failure)
            await self._wait_for_change()
        if self.child is not None:
            self.child.has_served = True

    async def close(self) -> None:
        """Ends every job in flight and closes all connections."""
        monitors, self._monitors = self._monitors, []
        for monitor in monitors:
            monitor.cancel()
        runs = list(self._jobs.values())
        for run in runs:
            run.end("closed")
        if pending := [run.finished for run in runs] + monitors:
            await asyncio.wait(pending)
        for replica in self._replicas:
            replica.close()
        if self.child is not None:
            await self.child.close()
        self._replicas, self._info = (), None
        self._changed.set()

    async def wait_ready(self) -> None:
        """Returns as soon as a job would be accepted. Raises `EngineError` like `generate`."""
        self._check_capacity(0)
        await self._wait_for_replica(asyncio.get_running_loop().time() + self._timeouts.retry_window_s)

    async def _wait_for_replica(self, deadline: float) -> None:
        """Returns as soon as a replica can take jobs. Raises `EngineError` at the deadline of the event loop."""
        while (reason := self.unready_reason()) is not None:
            if not self._monitors:
                raise EngineError.from_fault(STOPPED_FAULT)
            try:
                async with asyncio.timeout_at(deadline):
                    await self._wait_for_change()
            except TimeoutError:
                raise EngineError("engine_unavailable", reason, retryable=True) from None

    def unready_reason(self) -> str | None:
        """Returns the step at which the replicas are while none can take jobs; None if one can."""
        if not self._monitors:
            return NOT_RUNNING
        if any(replica.profile is not None for replica in self._replicas):
            return None
        if self.child is not None and self.child.status is not None:
            return self.child.status
        return "; ".join(replica.unready_reason or NOT_RUNNING for replica in self._replicas)

    def capacity(self) -> int:
        """Returns the maximum number of jobs on all replicas together."""
        return self._options.capacity

    def stats(self) -> EngineStats:
        """Returns the current counts. A job runs once it has a token."""
        running = sum(replica.stats.running for replica in self._replicas)
        return EngineStats(
            running=running,
            waiting=max(len(self._jobs) - running, 0),
            max_num_seqs=self._options.capacity,
            running_cache_tokens=sum(len(run.job.tokens) + len(run.generated) for run in self._jobs.values()),
            prompt_tokens=self._prompt_tokens,
            prefix_hit_tokens=self._hit_tokens,
            generated_tokens=self._generated_tokens,
            finished_jobs=self._finished_jobs,
            failed_jobs=self._failed_jobs,
        )

    async def cancel(self, job_id: str) -> None:
        """Hangs up, which frees the server's slot. Unknown ids are ignored."""
        if job_id in self._jobs:
            self._jobs[job_id].end("cancelled")

    async def generate(self, job: Job, on_chunk: OnChunk) -> None:
        """Runs a job on a replica. If that fails, it continues there or on another, as `RetrySchedule` allows."""
        if not self._monitors:
            raise EngineError.from_fault(STOPPED_FAULT)
        if job.id in self._jobs:
            raise EngineError("invalid_request", f"job {job.id!r} is already running")
        self._check_capacity(job.priority)
        run = self._jobs[job.id] = RemoteJob(job, on_chunk)
        try:
            async with run.scope:
                await self._run_attempts(run)
        except TimeoutError:
            if not run.scope.expired():
                raise
            run.report_end()
        except EngineError as error:
            if run.is_over:
                raise
            run.fail(Fault(error.code, error.message, error.retryable))
        finally:
            del self._jobs[job.id]
            run.finished.set_result(None)
            self._count_job(run)

    async def _run_attempts(self, run: RemoteJob) -> None:
        """Runs a job to its end. Raises `EngineError` for one that cannot continue."""
        schedule = RetrySchedule(run, self._options, self._timeouts)
        await self._wait_for_replica(schedule.give_up_at)
        check_job(run.job, self.info)
        run.pictures = await load_pictures(self._media, run.job, self._media_secret)
        key = run.job.affinity or affinity_of_prompt(run.job.owner, run.job.tokens)
        candidates = self._list_candidates(schedule)
        if not candidates:  # lost while the pictures were loaded
            raise EngineError("engine_unavailable", self.unready_reason() or NOT_RUNNING, retryable=True)
        while True:
            replica = choose_replica(candidates, key)
            if replica.profile is not None:
                schedule.note_attempt(replica.profile)
            failed = await self._runner.run_attempt(run, replica, {self._options.affinity_header: key})
            if failed is None:
                return
            candidates = await self._wait_for_candidates(schedule) if schedule.allows_retry(failed) else []
            if not candidates:
                error = failed.error
                run.fail(STREAM_BROKEN if run.num_tokens else Fault(error.code, error.message, error.retryable))
                return
            log.info("job %s is tried again after %d tokens: %s", run.job.id, run.num_tokens, failed.error.message)

    async def _wait_for_candidates(self, schedule: RetrySchedule) -> list[Replica]:
        """Returns replicas for the next try. Waits for one if the job may; returns none if it may not."""
        with contextlib.suppress(TimeoutError):
            while not (candidates := self._list_candidates(schedule)) and schedule.can_wait:
                await schedule.pause(self._wait_for_change)
            return candidates
        return []

    def _find_failure(self) -> str | None:
        """Returns the reason why no replica will ever take jobs; None if waiting may help."""
        if self.child is not None and self.child.failure is not None:
            return self.child.failure
        mismatches = [replica.mismatch for replica in self._replicas if replica.mismatch is not None]
        if len(mismatches) < len(self._replicas):
            return None
        return f"engine {mismatches[0]}" if mismatches else NOT_RUNNING

    def _list_candidates(self, schedule: RetrySchedule) -> list[Replica]:
        return [replica for replica in self._replicas if schedule.is_untried(replica.profile)]

    def _check_capacity(self, priority: int) -> None:
        if is_full(self._options.capacity, [run.job.priority for run in self._jobs.values()], priority):
            raise overloaded_error()

    def _count_job(self, run: RemoteJob) -> None:
        self._prompt_tokens += len(run.job.tokens) if run.is_admitted else 0
        self._hit_tokens += run.cached_tokens
        self._generated_tokens += run.num_tokens
        self._finished_jobs += run.is_over and not run.has_failed
        self._failed_jobs += run.has_failed

    def _on_child_exit(self, reason: str) -> None:
        """Takes the replica out without waiting for a failed health check."""
        for replica in self._replicas:
            replica.request_handshake(reason)
        self._on_change()

    def _on_change(self) -> None:
        """Recomputes what all replicas have in common."""
        profiles = [replica.profile for replica in self._replicas if replica.profile is not None]
        if profiles:
            self._info = msgspec.structs.replace(
                self._base_info,
                max_model_len=min(profile.max_model_len for profile in profiles),
                capabilities=functools.reduce(common_capabilities, (profile.capabilities for profile in profiles)),
                **common_images([profile.images for profile in profiles]),
                description=", ".join(dict.fromkeys(f"{each.kind} {each.version}".strip() for each in profiles)),
            )
        status = self.unready_reason() or "ready"
        if status != self._shown_status:
            self._shown_status = status
            self._on_status(status)
        self._changed.set()

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


def common_capabilities(one: Capabilities, other: Capabilities) -> Capabilities:
    """Returns what two engines can both do."""
    limits = [each.max_top_logprobs for each in (one, other) if each.max_top_logprobs is not None]
    return Capabilities(
        max_top_logprobs=min(limits) if limits else None,
        grammar_remedy=one.grammar_remedy or other.grammar_remedy,
        **{
            name: getattr(one, name) and getattr(other, name)
            for name in Capabilities.__struct_fields__
            if name not in ("max_top_logprobs", "grammar_remedy")
        },
    )
