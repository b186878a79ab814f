"""WebSocket sessions of OpenAI's SDKs for Python and Node: many lanes at once, a fork, and steers at random moments."""

import json
import shutil
from pathlib import Path

import pytest

from tests.clients.node_install import copy_node_programs
from tests.clients.python_install import PROGRAMS_FOLDER, install_python_clients, run_program
from tests.clients.steered_lanes import FORK, READ, build_script, check_lanes, hold_until_steered, plan_lanes
from tests.conftest import StartServer
from tests.counts import FULL_COUNTS
from tests.serving import scripted_registry

NUM_LANES = 16
SEED = 5
NUM_TURNS, NUM_STEERS = (20, 100) if FULL_COUNTS else (8, 80)


@pytest.mark.timeout(600)  # the first run installs packages
def test_python_session_runs_sixteen_lanes(start_server: StartServer, tmp_path: Path) -> None:
    program = [install_python_clients("python"), PROGRAMS_FOLDER / "lanes_client.py"]
    run_lanes(program, start_server, tmp_path, num_turns=NUM_TURNS, num_steers=NUM_STEERS)


@pytest.mark.timeout(600)  # the first run installs packages
def test_node_session_runs_sixteen_lanes_of_five_turns(node: Path, start_server: StartServer, tmp_path: Path) -> None:
    folder = copy_node_programs()
    try:
        run_lanes([node, folder / "lanes_client.mjs"], start_server, tmp_path, num_turns=5, num_steers=50)
    finally:
        shutil.rmtree(folder)


def run_lanes(program: list[Path], start_server: StartServer, home: Path, *, num_turns: int, num_steers: int) -> None:
    """Runs a client program on a server of its own. Checks what it saw, and that steers were in all places."""
    plan = plan_lanes(NUM_LANES, num_turns, num_steers, SEED)
    script, starts = build_script(plan, SEED)
    server = start_server(scripted_registry(script, max_num_seqs=64))
    hold_until_steered(server, starts)
    task = json.dumps({"url": server.url, "model": "scripted", "tools": [READ], "fork": FORK, "lanes": plan})
    counts = check_lanes(run_program([*program, task], home), NUM_LANES, num_turns, num_steers)
    assert sum(counts[place] for place in ("successor", "pending", "failed", "rejected")) == num_steers
    assert counts["successor"] and counts["pending"] and counts["ended early"], counts
