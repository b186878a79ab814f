"""Limits of keys and owners, with a clock that the test moves: the request after the last allowed one is refused."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from antiphon.app.errors import ApiError
from antiphon.app.options.api_keys import NO_KEY, ApiKey, KeyLimits
from antiphon.app.usage.limit_replies import format_duration
from antiphon.app.usage.limits import RateLimits, find_window_end, find_window_start


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class FakePlace:
    def __init__(self) -> None:
        self.on_release: Any = None


def make_key(limits: KeyLimits = KeyLimits(), owner_limits: KeyLimits = KeyLimits(), name: bytes = b"1") -> ApiKey:  # noqa: B008
    return ApiKey(digest=name * 32, owner="a", limits=limits, owner_limits=owner_limits)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def refuse(limits: RateLimits, key: ApiKey) -> ApiError:
    with pytest.raises(ApiError) as caught:
        limits.begin_request(key)
    error = caught.value
    assert error.status == 429
    return error


def headers_of(pairs: Any) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in pairs}


@pytest.mark.parametrize("place", ["key", "owner"])
def test_requests_a_minute(clock: Clock, place: str) -> None:
    limited = KeyLimits(requests_per_minute=3)
    key = make_key(limited) if place == "key" else make_key(owner_limits=limited)
    limits = RateLimits(clock=clock)
    for remaining, reset in ((2, "20s"), (1, "40s"), (0, "1m0s")):
        assert headers_of(limits.begin_request(key)) == {
            "x-ratelimit-limit-requests": "3",
            "x-ratelimit-remaining-requests": str(remaining),
            "x-ratelimit-reset-requests": reset,
        }
    error = refuse(limits, key)
    assert (error.code, error.type) == ("rate_limit_exceeded", "rate_limit_error")
    assert "Please try again in 20s." in error.message
    headers = dict(error.headers)
    assert headers["retry-after"] == "20" and headers["x-ratelimit-remaining-requests"] == "0"
    clock.now += 19.9
    assert "try again in 0.1s." in refuse(limits, key).message
    clock.now += 0.1
    limits.begin_request(key)
    refuse(limits, key)
    clock.now += 3600
    assert headers_of(limits.begin_request(key))["x-ratelimit-remaining-requests"] == "2", "at most a minute is saved"


def test_reset_is_true(clock: Clock) -> None:
    """After the told time, the whole limit is there again."""
    key, limits = make_key(KeyLimits(requests_per_minute=7)), RateLimits(clock=clock)
    for _ in range(5):
        headers = headers_of(limits.begin_request(key))
    match = re.fullmatch(r"([\d.]+)s", headers["x-ratelimit-reset-requests"])
    assert match is not None
    clock.now += float(match[1])
    assert headers_of(limits.begin_request(key))["x-ratelimit-remaining-requests"] == "6"


def test_told_wait_is_enough(clock: Clock) -> None:
    for limit in (1, 3, 7, 11, 59, 1000, 10**18):
        key, limits = make_key(KeyLimits(requests_per_minute=limit)), RateLimits(clock=clock)
        for _ in range(min(limit, 1000)):
            limits.begin_request(key)
        if limit > 1000:
            continue
        match = re.search(r"try again in ([\d.]+)s", refuse(limits, key).message)
        assert match is not None
        clock.now += float(match[1])
        limits.begin_request(key)


def test_tokens_a_minute_are_paid_afterwards(clock: Clock) -> None:
    key, limits = make_key(KeyLimits(tokens_per_minute=600)), RateLimits(clock=clock)
    limits.begin_request(key)
    limits.charge_tokens(key, 900)
    error = refuse(limits, key)
    assert "600 tokens a minute" in error.message and "try again in 30.1s" in error.message
    assert dict(error.headers)["x-ratelimit-remaining-tokens"] == "0"
    assert dict(error.headers)["x-ratelimit-reset-tokens"] == "1m30s"
    clock.now += 30.1
    assert headers_of(limits.begin_request(key))["x-ratelimit-remaining-tokens"] == "1"


def test_refused_request_does_not_count(clock: Clock) -> None:
    key = make_key(KeyLimits(requests_per_minute=60, tokens_per_minute=60))
    limits = RateLimits(clock=clock)
    limits.begin_request(key)
    limits.charge_tokens(key, 61)
    for _ in range(100):
        refuse(limits, key)
    clock.now += 2.1
    assert headers_of(limits.begin_request(key))["x-ratelimit-remaining-requests"] == "59"


def test_request_without_headers_counts_the_same(clock: Clock) -> None:
    key, limits = make_key(KeyLimits(requests_per_minute=2)), RateLimits(clock=clock)
    limits.count_request(key)
    assert headers_of(limits.begin_request(key))["x-ratelimit-remaining-requests"] == "0"
    with pytest.raises(ApiError, match="2 requests a minute"):
        limits.count_request(key)


@pytest.mark.parametrize("limit", ["requests_per_minute", "tokens_per_minute"])
def test_limit_that_a_reload_takes_away_and_brings_back(clock: Clock, limit: str) -> None:
    limits = RateLimits(clock=clock)
    limits.begin_request(make_key(KeyLimits(**{limit: 1})))
    limits.charge_tokens(make_key(KeyLimits(**{limit: 1})), 1)
    refuse(limits, make_key(KeyLimits(**{limit: 1})))
    assert limits.begin_request(make_key(KeyLimits(max_concurrent=5))) == ()
    assert headers_of(limits.begin_request(make_key(KeyLimits(**{limit: 1}))))


def test_turns_at_the_same_time(clock: Clock) -> None:
    key, limits = make_key(KeyLimits(max_concurrent=2)), RateLimits(clock=clock)
    assert limits.begin_request(key) == ()
    places = [FakePlace(), FakePlace()]
    limits.hold_turns(key, places)
    assert "2 responses at the same time, and 2 run. Please try again in 1s." in refuse(limits, key).message
    with pytest.raises(ApiError):
        limits.hold_turns(key, [FakePlace()])
    places[0].on_release()
    limits.begin_request(key)
    limits.hold_turns(key, [FakePlace()])
    refuse(limits, key)


def test_turns_of_one_request_begin_together_or_not_at_all(clock: Clock) -> None:
    key, limits = make_key(KeyLimits(max_concurrent=3)), RateLimits(clock=clock)
    first = [FakePlace(), FakePlace()]
    limits.hold_turns(key, first)
    with pytest.raises(ApiError) as caught:
        limits.hold_turns(key, [FakePlace(), FakePlace()])
    assert caught.value.status == 429
    for place in first:
        place.on_release()
    limits.hold_turns(key, [FakePlace(), FakePlace(), FakePlace()])
    with pytest.raises(ApiError) as caught:
        limits.hold_turns(key, [FakePlace()] * 4)
    assert (caught.value.status, caught.value.param) == (400, "n"), "it would never be allowed"


def test_owner_and_key_both_limit(clock: Clock) -> None:
    shared = KeyLimits(requests_per_minute=3)
    first, second = make_key(KeyLimits(requests_per_minute=2), shared, b"1"), make_key(owner_limits=shared, name=b"2")
    limits = RateLimits(clock=clock)
    limits.begin_request(first)
    limits.begin_request(first)
    assert "2 requests a minute" in refuse(limits, first).message
    assert headers_of(limits.begin_request(second))["x-ratelimit-remaining-requests"] == "0"
    assert "3 requests a minute" in refuse(limits, second).message


@pytest.mark.parametrize("window", ["day", "month"])
def test_budget_that_is_used_up(clock: Clock, window: str) -> None:
    used = 0
    asked: list[tuple[str, str | None, str]] = []

    def used_tokens(owner: str, key_id: str | None, of: str) -> int:
        asked.append((owner, key_id, of))
        return used

    wall = datetime(2026, 12, 31, 23, 30, tzinfo=UTC).timestamp()
    key = make_key(KeyLimits(**{f"tokens_per_{window}": 1000}))
    limits = RateLimits(used_tokens, clock=clock, wall_clock=lambda: wall)
    used = 999
    limits.begin_request(key)
    used = 1000
    error = refuse(limits, key)
    assert (error.code, error.type) == ("insufficient_quota", "insufficient_quota")
    assert f"1000 tokens a {window}. The next {window} begins at 2027-01-01T00:00:00Z." in error.message
    assert dict(error.headers)["x-should-retry"] == "false" and "try again" not in error.message
    assert asked[-1] == ("a", key.id, window)


def test_share_of_several_servers(clock: Clock) -> None:
    servers = 3
    key = make_key(KeyLimits(requests_per_minute=9, max_concurrent=6))
    limits = RateLimits(clock=clock, count_servers=lambda: servers)
    for _ in range(3):
        limits.begin_request(key)
    assert "try again in 20s" in refuse(limits, key).message
    clock.now += 3600
    places = [FakePlace(), FakePlace()]
    limits.hold_turns(key, places)
    with pytest.raises(ApiError):
        limits.hold_turns(key, [FakePlace()])
    servers = 1
    limits.hold_turns(key, [FakePlace()])


def test_share_below_one_request_still_lets_one_through(clock: Clock) -> None:
    key = make_key(KeyLimits(requests_per_minute=1, max_concurrent=1))
    limits = RateLimits(clock=clock, count_servers=lambda: 4)
    limits.begin_request(key)
    refuse(limits, key)
    clock.now += 240
    limits.begin_request(key)
    limits.hold_turns(key, [FakePlace()])


def test_lower_limit_after_a_reload_is_in_force_at_once(clock: Clock) -> None:
    limits = RateLimits(clock=clock)
    limits.begin_request(make_key(KeyLimits(requests_per_minute=100)))
    for _ in range(5):
        limits.begin_request(make_key(KeyLimits(requests_per_minute=5)))
    refuse(limits, make_key(KeyLimits(requests_per_minute=5)))


def test_clock_that_goes_backwards_gives_nothing(clock: Clock) -> None:
    key, limits = make_key(KeyLimits(requests_per_minute=1)), RateLimits(clock=clock)
    limits.begin_request(key)
    clock.now -= 500
    refuse(limits, key)


def test_work_of_the_server_counts_tokens_only(clock: Clock) -> None:
    own, owner = KeyLimits(requests_per_minute=1, max_concurrent=1), KeyLimits(tokens_per_minute=60)
    key = ApiKey(digest=b"1" * 32, owner="a", limits=own, owner_limits=owner)
    limits = RateLimits(clock=clock)
    limits.begin_request(key)
    limits.hold_turns(key, [FakePlace()])
    limits.check_tokens(key)
    limits.charge_tokens(key, 61)
    with pytest.raises(ApiError, match="tokens a minute"):
        limits.check_tokens(key)


def test_budget_of_a_key_binds_the_work_of_the_server(clock: Clock) -> None:
    key, used = make_key(KeyLimits(tokens_per_day=3)), 2
    limits = RateLimits(lambda *_: used, clock=clock)
    limits.check_tokens(key)
    used = 3
    with pytest.raises(ApiError, match="3 tokens a day"):
        limits.check_tokens(key)


def test_key_without_limits_gets_no_headers(clock: Clock) -> None:
    limits = RateLimits(clock=clock)
    for key in (NO_KEY, ApiKey(digest=b"1" * 32, owner="a")):
        assert limits.begin_request(key) == ()
        limits.hold_turns(key, [FakePlace()])


def test_anthropic_headers(clock: Clock) -> None:
    key = make_key(KeyLimits(requests_per_minute=2, tokens_per_minute=100))
    limits = RateLimits(clock=clock, wall_clock=lambda: 1_800_000_000.0)
    assert headers_of(limits.begin_request(key, is_anthropic=True)) == {
        "anthropic-ratelimit-requests-limit": "2",
        "anthropic-ratelimit-requests-remaining": "1",
        "anthropic-ratelimit-requests-reset": "2027-01-15T08:00:30Z",
        "anthropic-ratelimit-tokens-limit": "100",
        "anthropic-ratelimit-tokens-remaining": "100",
        "anthropic-ratelimit-tokens-reset": "2027-01-15T08:00:00Z",
    }


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.0004, "1ms"), (0.25, "250ms"), (0.9999, "1s"), (1.5, "1.5s"), (59.9996, "60s"), (60, "1m0s"),
     (359.2, "6m0s"), (3600, "1h0m0s"), (90_061, "25h1m1s")],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("moment", "day", "month"),
    [
        ("2026-11-27T10:00", ("2026-11-27", "2026-11-28"), ("2026-11-01", "2026-12-01")),
        ("2026-12-31T23:59", ("2026-12-31", "2027-01-01"), ("2026-12-01", "2027-01-01")),
        ("2028-02-29T00:00", ("2028-02-29", "2028-03-01"), ("2028-02-01", "2028-03-01")),
    ],
)
def test_windows(moment: str, day: tuple[str, str], month: tuple[str, str]) -> None:
    now = datetime.fromisoformat(f"{moment}+00:00").timestamp()
    for window, dates in (("day", day), ("month", month)):
        start, end = (datetime.fromisoformat(f"{date}T00:00+00:00").timestamp() for date in dates)
        assert (find_window_start(window, now), find_window_end(window, now)) == (start, end)
