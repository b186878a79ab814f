"""The soak test of tools, for some seconds: every response ends as its tool does, and nothing piles up."""

import signal
import sys
from functools import partial

import pytest

from bench.soak import SoakTest, run_soak

NUM_CLIENTS = 6


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_tools_that_hang_die_and_flood_leave_nothing() -> None:
    test = partial(SoakTest, num_clients=NUM_CLIENTS, seed=7, uses_tools=True, traffic_s=1.5)
    outcomes, readings, exit_code = run_soak(test, 0, 6, uses_tools=True)
    wrong = {outcome: count for outcome, count in outcomes.items() if "WRONG" in outcome or outcome.endswith("Error")}
    assert outcomes.total() >= NUM_CLIENTS and not wrong, wrong
    assert exit_code == -signal.SIGTERM, "the server ends by the signal, once it has shut down"
    first, last = readings[0], readings[-1]
    assert last.requests > 0 and (len(readings) == 1 or last.requests > first.requests), (
        "a slow machine has one reading"
    )
    assert last.processes <= max(first.processes, 2), "at most the command of the tools, and one more"
    assert last.open_files <= first.open_files + 2 * NUM_CLIENTS, "files, and connections that clients keep open"
    assert last.tasks <= first.tasks + 2 * NUM_CLIENTS
