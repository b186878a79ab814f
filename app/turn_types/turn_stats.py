"""Identity, times, ending and token counts of a turn. They are always kept, and hold none of its content."""

from typing import Literal

from msgspec import Struct, field

from antiphon.app.options.api_keys import NO_KEY, ApiKey
from antiphon.app.turn_types.endings import Ending
from antiphon.app.turn_types.tracing.context import RequestTrace
from antiphon.app.turn_types.tracing.turn_trace import TurnTrace
from antiphon.events.response import Response

Api = Literal["responses", "chat", "completions", "messages", "compact"]
"""API of the requests that start turns."""


class TurnOrigin(Struct, frozen=True, kw_only=True):
    """The request that a turn answers, as it came."""

    api: Api = "responses"
    arrived: float | None = None
    """Time of the monotonic clock at which the head of the request had arrived."""
    request_id: str = ""
    body: bytes = b""
    """The body, decompressed."""
    key: ApiKey = NO_KEY
    """API key of the request."""
    is_batch: bool = False
    """True for a line of a batch: the server spreads these itself, so that only their tokens are limited."""
    trace: RequestTrace | None = None
    """Its span; None if nothing is traced."""


NO_ORIGIN = TurnOrigin()
"""Origin of a turn that no request has started."""


class TurnTimes(Struct, kw_only=True):
    """Times of a turn, in seconds of the monotonic clock; None for what has not happened.

    In the order of the fields, they never decrease.
    """

    arrived: float | None = None
    """The head of the request has arrived."""
    parsed: float | None = None
    """The request is valid."""
    rendered: float | None = None
    """The prompt is rendered."""
    submitted: float | None = None
    """The engine has the first job."""
    admitted: float | None = None
    """The engine works on the first job."""
    first_token: float | None = None
    last_token: float | None = None
    ended: float | None = None
    """The last event is in the log."""
    durable: float | None = None
    """The last event is in the store; None if the response is not stored."""

    def seconds_until(self, end: float | None) -> float | None:
        """Returns the seconds from the request to this time; None if one of them is not known."""
        start = self.parsed if self.arrived is None else self.arrived
        return None if start is None or end is None else end - start


class JobTimes(Struct, kw_only=True):
    """Times of one job of a turn on the engine, in seconds of the monotonic clock; None for what has not happened."""

    submitted: float
    admitted: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    longest_gap_s: float = 0.0
    """Longest time between two outputs of the engine."""
    ended: float | None = None
    num_steps: int = 0
    """Number of outputs of the engine."""
    cached_tokens: int = 0
    replica: str = ""
    """Server that has admitted the job, if engines on other servers do."""
    attempt: int = 0
    """Number of that try, from 1."""

    @property
    def queue_s(self) -> float:
        """Seconds for which the job has waited for the engine."""
        return _elapsed(self.submitted, self.ended if self.admitted is None else self.admitted)

    @property
    def prefill_s(self) -> float:
        """Seconds from the admission to the first token, or to the end of a job that has none."""
        return _elapsed(self.admitted, self.ended if self.first_token is None else self.first_token)

    @property
    def decode_s(self) -> float:
        """Seconds from the first token to the last one."""
        return _elapsed(self.first_token, self.last_token)


def _elapsed(start: float | None, end: float | None) -> float:
    """Returns the seconds between two times; 0 if one of them is not known."""
    return 0.0 if start is None or end is None else end - start


class TurnStats(Struct, kw_only=True):
    """Figures of one turn. They are filled while it runs, and complete once `ending` is set."""

    response_id: str
    model: str
    key: ApiKey = NO_KEY
    """API key of the request; that of the owner alone once another process continues the turn."""
    api: Api = "responses"
    times: TurnTimes = field(default_factory=TurnTimes)
    jobs: list[JobTimes] = []
    """The jobs of the turn: that of a summary, then one for each round."""
    trace: TurnTrace | None = None
    """None if nothing is traced."""
    started_at: float = 0.0
    """Time at which the turn began, in seconds since 1970."""
    status: str = "in_progress"
    """Status of the response; `refused` for a turn that ended before its first event."""
    ending: Ending | None = None
    refusal_status: int = 0
    """HTTP status of the error that the client gets in the place of the turn; 0 if it gets the turn."""
    is_batch: bool = False
    """True for a line of a batch, which is sent again after a temporary error."""
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    """Part of the output."""
    counts_input: bool = True
    """False for a further choice of a prompt, which the usage of the reply has once."""
    counts_request: bool = True
    """False for a further turn of the same request."""
    charged_tokens: int = 0
    """Tokens that are charged to the limits of the key already."""
    previous_id: str = ""
    """Id of the response that the turn continues."""
    error_code: str = ""
    tools: tuple[str, ...] = ()
    """Names of the tools that the model called, or the types of calls without a name, each once."""

    def begin_job(self, now: float) -> JobTimes:
        """Records that the engine has got a job. Returns its times."""
        self.times.submitted = self.times.submitted or now
        self.jobs.append(JobTimes(submitted=now))
        return self.jobs[-1]

    def admit_job(self, now: float, replica: str = "", attempt: int = 0) -> None:
        """Records that the engine works on the latest job."""
        job = self.jobs[-1]
        self.times.admitted, job.admitted = self.times.admitted or now, now
        job.replica, job.attempt = replica, attempt

    def add_tokens(self, now: float) -> None:
        """Records that the engine has sent tokens of the latest job."""
        job, self.times.last_token = self.jobs[-1], now
        if job.last_token is None:
            self.times.first_token, job.first_token = self.times.first_token or now, now
        elif now - job.last_token > job.longest_gap_s:
            job.longest_gap_s = now - job.last_token
        job.last_token = now
        job.num_steps += 1


def create_stats(base: Response, origin: TurnOrigin, times: TurnTimes, started_at: float) -> TurnStats:
    """Returns the figures of a turn that begins. `base` is its response without output."""
    return TurnStats(
        response_id=base.id,
        model=base.model,
        key=origin.key,
        api=origin.api,
        times=times,
        started_at=started_at,
        previous_id=base.previous_response_id or "",
        is_batch=origin.is_batch,
    )
