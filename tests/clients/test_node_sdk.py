"""Every case through the stream helpers of the openai SDK for Node, which is stricter than Python's."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.clients.sdk_helpers import CASES, Case, Json, chat_body, events, get, post, responses_body
from tests.clients.test_chat_stream import as_whole
from tests.install_lock import alone
from tests.invariants import check
from tests.serving import RunningServer
from tests.syntax import ROOT

FOLDER = ROOT / "build" / "node"
SDK, NODE = "7.55.0", "22.23.3"
INSTALL_WITHIN = 180.0
ENDING = [case for case in CASES if not case.refused and not case.cancel]
REFUSED = [case for case in CASES if case.refused]


@pytest.fixture(scope="session")
def node() -> Path:
    """A Node that the SDK runs on, with the SDK beside it. Skips with a reason where there is none to be had."""
    with alone(FOLDER):
        return _ready()


def _ready() -> Path:
    wanted = [] if _version(FOLDER / "node_modules" / "openai") == SDK else [f"openai@{SDK}"]
    program = shutil.which("node")
    if _major(program) < 22:
        program = str(FOLDER / "node_modules" / ".bin" / "node")
        wanted += [] if _major(program) >= 22 else [f"node@{NODE}"]
    if wanted:
        _install(wanted)
    if _major(program) < 22 or program is None:
        pytest.skip("the SDK wants Node 22, and npm did not bring it")
    return Path(program)


def _install(packages: list[str]) -> None:
    if not shutil.which("npm"):
        pytest.skip("npm is not installed, and it is npm that brings the SDK")
    words = ["npm", "install", "--prefix", str(FOLDER), "--no-audit", "--no-fund", *packages]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=INSTALL_WITHIN, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm did not bring {' '.join(packages)} within {INSTALL_WITHIN:g} s")
    if done.returncode:
        pytest.skip(f"npm did not bring {' '.join(packages)}: {(done.stderr.strip() or 'nothing').splitlines()[-1]}")


def _version(package: Path) -> str | None:
    try:
        found: str = json.loads((package / "package.json").read_text(encoding="utf-8"))["version"]
    except (OSError, ValueError, KeyError):
        return None
    return found


def _major(program: str | None) -> int:
    if program is None:
        return 0
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, check=False)
    except OSError:
        return 0
    found = re.match(r"v(\d+)\.", done.stdout)
    return int(found[1]) if found else 0


@pytest.fixture(scope="session")
def heard(node: Path, house: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Json:
    """What Node heard of each case, all in one run."""
    task = tmp_path_factory.mktemp("node") / "task.json"
    usage = {"stream_options": {"include_usage": True}}
    cases = [
        {"name": case.name, "responses": responses_body(case), "chat": chat_body(case) | usage}
        for case in [*ENDING, *REFUSED]
    ]
    task.write_text(json.dumps({"url": house.url, "cases": cases}), encoding="utf-8")
    script = shutil.copy(Path(__file__).with_name("read.mjs"), FOLDER)
    done = subprocess.run([node, script, task], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: Json = json.loads(done.stdout)
    return found


def bare(value: Any) -> Any:
    """Without what the helpers add."""
    if isinstance(value, dict):
        added = ("parsed", "parsed_arguments", "output_parsed", "output_text", "snapshot")
        return {key: bare(inside) for key, inside in value.items() if key not in added}
    return [bare(inside) for inside in value] if isinstance(value, list) else value


@pytest.mark.parametrize("case", ENDING, ids=lambda case: case.name)
def test_the_responses_helper_reads_every_case_and_raises_only_on_errors(
    heard: Json, house: RunningServer, case: Case
) -> None:
    said = heard[case.name]["responses"]
    made = said["events"][0]["response"]["id"]
    wire = events(get(f"{house.url}/responses/{made}?stream=true").content)
    response = check(wire)
    if wire[-1]["type"] == "response.failed":
        assert said["raised"]["message"].endswith(response["error"]["message"])
        assert bare(said["events"]) == bare(wire[:-2])
        return
    assert said["raised"] is said["raisedAtTheEnd"] is None
    assert bare(said["events"]) == bare(wire)
    assert bare(said["final"]) == bare(response)
    again = heard[case.name]["again"]
    assert again["raised"] is again["raisedAtTheEnd"] is None
    assert bare(again["events"]) == bare(wire[2:]) and bare(again["final"]) == bare(response)


@pytest.mark.parametrize("case", ENDING, ids=lambda case: case.name)
def test_the_chat_helper_reads_every_case_and_raises_only_on_errors(
    heard: Json, house: RunningServer, case: Case
) -> None:
    said = heard[case.name]["chat"]
    reply = post(f"{house.url}/chat/completions", json=chat_body(case))
    if reply.status_code == 500:
        assert said["raised"]["message"].endswith(reply.json()["error"]["message"])
        assert said["events"], "what came before the error was heard"
        return
    whole = reply.json()
    assert said["raised"] is said["raisedAtTheEnd"] is None
    assert said["events"][-1]["usage"] == whole["usage"]
    assert without_reasoning(bare(said["final"])) == without_reasoning(whole)


def without_reasoning(completion: Json) -> Json:
    """Reasoning is no field of OpenAI's chat: Node's helper keeps the last piece of it only."""
    told = as_whole(completion)
    for choice in told["choices"]:
        for key in ("reasoning", "reasoning_content"):
            choice["message"].pop(key, None)
    return told


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_a_refused_job_raises_before_any_event(heard: Json, case: Case) -> None:
    for face in ("responses", "chat"):
        said = heard[case.name][face]
        assert said["events"] == []
        assert (said["raised"]["kind"], said["raised"]["status"]) == ("RateLimitError", 429)
