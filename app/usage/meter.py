"""Connects the limits of API keys and the sums of what they use with requests and turns."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Literal

from antiphon.app.http.asgi import HeaderPairs
from antiphon.app.keys.key_ring import KeyRing
from antiphon.app.options.api_keys import ApiKey
from antiphon.app.store.history.usage_tables import UsageCounts
from antiphon.app.store.store import ResponseStore
from antiphon.app.turn_types.turn_stats import TurnStats
from antiphon.app.usage.limits import RateLimits, TurnPlace
from antiphon.app.usage.recorder import UsageRecorder

REJECTION = UsageCounts(rejections=1)
REJECTED_STATUS = 429
"""HTTP status of a rejection."""
UNAVAILABLE_STATUS = 503
"""HTTP status of a reply to a request that may be sent again."""
_OPEN_STATUSES = ("queued", "in_progress")
"""Statuses of a response that has not ended."""


class UsageMeter:
    """Asked before a request is parsed, when its turns begin, when a prompt is rendered, and when a turn has ended."""

    def __init__(
        self, keys: KeyRing | None = None, limits: RateLimits | None = None, recorder: UsageRecorder | None = None
    ) -> None:
        self._keys = KeyRing() if keys is None else keys
        self._limits = RateLimits() if limits is None else limits
        self.recorder = recorder

    def begin_request(self, key: ApiKey, *, api: Literal["openai", "anthropic"] = "openai") -> HeaderPairs:
        """Counts a request. Returns the headers of its reply; raises `ApiError` 429."""
        return self._limits.begin_request(key, is_anthropic=api == "anthropic")

    def count_request(self, key: ApiKey) -> None:
        """Counts a request whose reply has no headers, as over WebSocket and gRPC. Raises `ApiError` 429."""
        self._limits.count_request(key)

    def count_reply(self, key: ApiKey, status: int) -> None:
        """Counts a request that is answered 429. Its body, which names the model, may not have been read.

        Those that answer call it: the request guard, the WebSocket, gRPC, and the runner of batches.
        """
        if status == HTTPStatus.TOO_MANY_REQUESTS and self.recorder is not None:
            self.recorder.add(key.owner, key.id, "", REJECTION)

    def hold_turns(self, key: ApiKey, places: Sequence[TurnPlace]) -> None:
        """Counts turns until their places are released. Raises `ApiError`; then none counts."""
        self._limits.hold_turns(key, places)

    def find_worker(self, owner: str, key_id: str, model: str | None) -> ApiKey | None:
        """Returns the key that binds work of an owner: see `KeyRing.find_worker`."""
        return self._keys.find_worker(owner, key_id, model)

    def check_tokens(self, key: ApiKey) -> None:
        """Checks the limits of tokens alone, for a line of a batch. Raises `ApiError` 429."""
        self._limits.check_tokens(key)

    def charge_prompt(self, stats: TurnStats, num_tokens: int) -> None:
        """Charges the prompt of a turn, which waits for the engine now."""
        stats.charged_tokens = num_tokens
        self._limits.charge_tokens(stats.key, num_tokens)

    def end_turn(self, stats: TurnStats, owner: str) -> None:
        """Charges what a turn has used beside its prompt, and adds the turn to the sums of its key."""
        counts = _count_turn(stats)
        num_tokens = 0 if counts is None else counts.input_tokens + counts.output_tokens
        self._limits.charge_tokens(stats.key, num_tokens - stats.charged_tokens)
        if self.recorder is not None and counts is not None:
            self.recorder.add(owner, stats.key.id, stats.model, counts)

    def charge_input(self, key: ApiKey, model: str, num_tokens: int) -> None:
        """Charges and adds up a request that generates no text, such as one for embeddings."""
        self._limits.charge_tokens(key, num_tokens)
        if self.recorder is not None:
            self.recorder.add(key.owner, key.id, model, UsageCounts(requests=1, input_tokens=num_tokens))


def _count_turn(stats: TurnStats) -> UsageCounts | None:
    """Returns what a turn adds to the sums of its key; None for nothing.

    They equal the sums of what responses say: a turn that was refused has used no tokens, and one that another process
    continues is counted there, as a whole, at its end. A rejection is counted where it is answered.
    """
    if stats.status in _OPEN_STATUSES or stats.refusal_status == REJECTED_STATUS:
        return None
    num_first = int(stats.counts_request)
    if stats.refusal_status == UNAVAILABLE_STATUS and stats.is_batch:  # the line is sent again
        return None
    if stats.refusal_status:
        return UsageCounts(requests=num_first, failures=int(stats.status == "refused"))
    return UsageCounts(
        requests=num_first,
        input_tokens=stats.input_tokens if stats.counts_input else 0,
        cached_tokens=stats.cached_tokens if stats.counts_input else 0,
        output_tokens=stats.output_tokens,
        reasoning_tokens=stats.reasoning_tokens,
        failures=int(stats.status == "failed"),
    )


def create_meter(store: ResponseStore, keys: KeyRing) -> UsageMeter:
    """Returns the meter of a server, whose budgets count what all servers of the store have used."""
    usage = UsageRecorder(store)
    return UsageMeter(keys, RateLimits(usage.used_tokens, count_servers=lambda: store.servers.num_serving), usage)
