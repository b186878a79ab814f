"""A process that reads pictures: what it cannot do, whose fault its end is, and replies that are not believed."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon.app.media.array_checks import take_arrays
from antiphon.app.sandbox import sandbox_process
from antiphon.app.sandbox.media.media_process import MediaProcess
from antiphon.app.sandbox.media.messages import (
    DescribeRequest,
    FaultReply,
    ImageLimits,
    InspectRequest,
    PreparedReply,
    ProcessorFacts,
    ProcessorFiles,
)
from antiphon.app.sandbox.sandbox_process import SandboxError

pytestmark = pytest.mark.processes

MODULE = "tests.app.sandbox.confined_worker"
LANDLOCK, NETWORK = "landlock", "an own network namespace"


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[MediaProcess]:
    """A process that tries what it is asked to try."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    monkeypatch.setenv("HF_TOKEN", "secret")
    process = MediaProcess(MODULE, 0.5)
    yield process
    process.close()


def ask(process: MediaProcess, action: str) -> str:
    """Returns what the process says of an action, or the code of a fault."""
    reply = process.ask(DescribeRequest(ProcessorFiles(b"", action, b"", b"", {}))).reply
    assert isinstance(reply, ProcessorFacts | FaultReply)
    return reply.error if isinstance(reply, ProcessorFacts) else reply.code


def test_process_cannot_reach_anything(process: MediaProcess) -> None:
    assert ask(process, "echo") == "yes"
    if LANDLOCK not in process.missing:
        assert {ask(process, action) for action in ("read", "list", "write")} == {"refused: Permission denied"}
    if NETWORK not in process.missing:
        assert ask(process, "connect") in ("refused: Network is unreachable", "refused: Permission denied")
    assert "HF_TOKEN" not in ask(process, "environment")
    assert ask(process, "files") == "limited"


@pytest.mark.skipif(sys.platform != "linux", reason="files in memory")
def test_file_in_memory_has_a_limit(process: MediaProcess) -> None:
    assert ask(process, "large file") == "refused: File too large"


@pytest.mark.parametrize(("action", "num_restarts"), [("overflow", 1), ("compute", 1), ("allocate", 2)])
def test_picture_that_reaches_a_limit_is_at_fault(process: MediaProcess, action: str, num_restarts: int) -> None:
    """Pictures before it may have filled the memory, so that limit counts in a new process."""
    assert ask(process, "echo") == "yes"
    assert ask(process, action) == "too_slow"
    assert process.num_restarts == num_restarts and process.pid is not None, "the next one starts at once"
    assert ask(process, "echo") == "yes"


@pytest.mark.parametrize(
    ("action", "reason"),
    [("killed", "SIGKILL"), ("garbage", "a reply that is none"), ("endless", "a reply of")],
)
def test_other_ends_are_the_servers_fault(process: MediaProcess, action: str, reason: str) -> None:
    with pytest.raises(SandboxError, match=reason):
        ask(process, action)
    assert ask(process, "echo") == "yes"


def test_program_that_cannot_start_says_why() -> None:
    process = MediaProcess("antiphon.app.sandbox.media.no_such_module")
    with pytest.raises(SandboxError, match="at its start: "):
        ask(process, "echo")
    process.close()


def test_closed_process_does_not_start_again(process: MediaProcess) -> None:
    assert ask(process, "echo") == "yes"
    process.close()
    with pytest.raises(SandboxError, match="the server stops"):
        ask(process, "echo")


@pytest.mark.skipif(sys.platform != "linux", reason="files in memory")
@pytest.mark.parametrize("action", ["honest", "short", "unsealed", "outside", "overlapping", "unaligned", "negative"])
def test_arrays_are_as_they_say(process: MediaProcess, action: str) -> None:
    answer = process.ask(DescribeRequest(ProcessorFiles(b"", action, b"", b"", {})))
    assert isinstance(answer.reply, PreparedReply) and answer.descriptor is not None
    if action == "honest":
        os.close(take_arrays(answer.reply, answer).descriptor)
    else:
        with pytest.raises(SandboxError, match="image_worker sent"):
            take_arrays(answer.reply, answer)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(answer.descriptor)


def test_a_process_that_starts_while_the_server_stops_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    process, ended = MediaProcess("none"), list[bool]()

    class StartingWorker:
        """A process whose start the stop of the server overtakes."""

        def __init__(self, *_: object, **__: object) -> None:
            process.close()

        def end(self) -> None:
            ended.append(True)

    monkeypatch.setattr(sandbox_process, "_Worker", StartingWorker)
    with pytest.raises(SandboxError, match="the server stops"):
        process.ask(InspectRequest(ImageLimits()))
    assert ended == [True]
