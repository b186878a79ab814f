"""The time after which a client learns that a server died, as the documentation promises it."""

import pytest

from antiphon.app.store.postgres.follower import FOLLOW_POLL_INTERVAL_S
from antiphon.app.store.writing.write_ops import StoreTimings
from tests.syntax import ROOT

pytestmark = pytest.mark.processes


def test_failover_is_seen_within_ten_seconds() -> None:
    """The last heartbeat ages to the lease; the next heartbeat of another server finds it; a follower polls."""
    timings = StoreTimings()
    assert timings.lease_s + 2 * timings.heartbeat_s + FOLLOW_POLL_INTERVAL_S <= 10
    assert timings.lease_s >= 5 * timings.heartbeat_s, "a few missed heartbeats are no death"


def test_page_tells_the_lease() -> None:
    page = " ".join((ROOT / "docs" / "cluster.md").read_text(encoding="utf-8").split())
    assert StoreTimings().lease_s == 7
    assert "seven seconds after its last sign of life" in page and "within ten seconds" in page
